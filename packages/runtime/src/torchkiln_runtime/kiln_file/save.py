"""``save_program``: writes a ``.kiln`` file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from torchkiln_core import Network, PlanError, PlanFormatError, from_record, to_record
from torchkiln_runtime.kiln_file.archive import PROGRAM, TENSORS
from torchkiln_runtime.kiln_file.archive_writer import ArchiveWriter, replaced_file
from torchkiln_runtime.kiln_file.fields import dump_json
from torchkiln_runtime.kiln_file.graph_writer import GraphWriter
from torchkiln_runtime.kiln_file.names import is_identifier
from torchkiln_runtime.kiln_file.plan_record import plan_member, write_plan, write_rejection
from torchkiln_runtime.kiln_file.safetensors_format import Block, header_of
from torchkiln_runtime.kiln_file.saved import SavedProgram, SavedSegment
from torchkiln_runtime.kiln_file.tensor_table import TensorTable


def save_program(program: SavedProgram, path: str | os.PathLike[str]) -> None:
    """Writes a program. A file at ``path`` is replaced at once or, on an error, left alone.

    Parameters become plain tensors. Tensors are streamed from where they are: one at a time is copied to the host.

    Raises:
        PlanError: The program has a part that files do not hold (the message names the node and the user's line), or the file cannot
            be written.
    """
    tensors = TensorTable()
    text = _dump(_program_record(program, tensors))
    records, blocks = tensors.layout()
    with replaced_file(Path(path)) as file:
        archive = ArchiveWriter(file)
        _write_tensors(archive, blocks)
        for segment in program.segments:
            for index, plan in enumerate(segment.plans):
                with archive.member(plan_member(segment.name, index)) as member:
                    member.write_tensor(plan.data)
        with archive.member(PROGRAM) as member:
            member.write(b'{"program":' + text + b',"tensors":' + _dump(records) + b"}")
        archive.finish()


def _write_tensors(archive: ArchiveWriter, blocks: tuple[Block, ...]) -> None:
    header, ordered = header_of(blocks)
    with archive.member(TENSORS) as member:
        member.write(header)
        for block in ordered:
            member.write_tensor(block.content)


def _program_record(program: SavedProgram, tensors: TensorTable) -> dict[str, Any]:
    names = [segment.name for segment in program.segments]
    if len(set(names)) != len(names) or not all(map(is_identifier, names)):
        raise PlanError(f"program: expected distinct identifiers as names of its segments, got {names}")
    # Weights come first, so that what a segment shares with them is stored under the weight's name.
    weights = {name: tensors.add(f"weights:{name}", tensor) for name, tensor in program.weights.items()}
    return {
        "weights": weights,
        "stitched": GraphWriter("stitched graph", tensors, frozenset(names)).write(program.stitched),
        "segments": [_segment_record(segment, tensors) for segment in program.segments],
        "signature": _json_data(program),
        "rejections": [write_rejection(rejection) for rejection in program.rejections],
    }


def _segment_record(segment: SavedSegment, tensors: TensorTable) -> dict[str, Any]:
    record: dict[str, Any] = {"name": segment.name, "kind": segment.kind, "calls": list(segment.calls)}
    match segment:
        case SavedSegment(kind="engine", network=Network() as network, graph=None):
            record["network"] = _network_record(segment.name, network, tensors)
            record["plans"] = [write_plan(plan, f"segment {segment.name}, plan {index}") for index, plan in enumerate(segment.plans)]
        case SavedSegment(kind="torch", network=None, plans=(), graph=graph) if graph is not None:
            record["graph"] = GraphWriter(segment.name, tensors).write(graph)
        case _:
            raise PlanError(f"segment {segment.name}: expected an engine with a network and plans, or a torch segment with a graph alone")
    return record


def _network_record(name: str, network: Network, tensors: TensorTable) -> dict[str, Any]:
    record, constants = to_record(network)
    try:
        from_record(record, constants)
    except PlanFormatError as error:
        raise PlanError(f"segment {name}: its network cannot be read back from its record: {error.message}") from error
    return {"record": record, "constants": {key: tensors.add(f"{name}/{key}", tensor) for key, tensor in constants.items()}}


def _json_data(program: SavedProgram) -> dict[str, Any]:
    """The signature, if it comes back from JSON as it is; tuples and keys that are no strings do not."""
    signature = dict(program.signature)
    if json.loads(_dump(signature)) != signature:
        raise PlanError("signature: expected JSON data, got tuples or keys that are no strings")
    return signature


def _dump(data: Any) -> bytes:
    try:
        return dump_json(data)
    except (TypeError, ValueError, RecursionError) as error:
        raise PlanError(f"program: expected JSON data: {error}") from error
