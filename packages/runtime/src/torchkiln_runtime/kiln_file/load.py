"""``load_program``: reads a ``.kiln`` file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, cast

import torch

from torchkiln_core import PlanFormatError, Rejection, from_record
from torchkiln_runtime.kiln_file.archive import PROGRAM, TENSORS
from torchkiln_runtime.kiln_file.archive_reader import ArchiveReader, opened
from torchkiln_runtime.kiln_file.fields import parse_json, take, take_list
from torchkiln_runtime.kiln_file.graph_reader import read_graph
from torchkiln_runtime.kiln_file.names import is_identifier
from torchkiln_runtime.kiln_file.plan_record import plan_member, read_plan, read_rejection
from torchkiln_runtime.kiln_file.saved import SavedProgram, SavedSegment, UnboundSegment
from torchkiln_runtime.kiln_file.tensor_reader import TensorReader, read_blocks


def load_program(path: str | os.PathLike[str]) -> SavedProgram:
    """Reads what ``save_program`` wrote; every byte of the file is checked.

    Weights and the tensors of torch segments come back on the device that they were saved from, or on the host where that is missing;
    constants of networks and plans on the host.

    Raises:
        PlanFormatError: The file is missing, truncated, altered, not one of ours or of a newer format, or calls an operator that is not
            registered in this process.
    """
    try:
        with opened(Path(path)) as archive, torch.device("cpu"):
            return _read_program(archive)
    except PlanFormatError as error:
        raise PlanFormatError(f"{os.fspath(path)}: {error.message}", fix=error.fix) from error
    except Exception as error:
        # Checksums do not say who wrote a file. Whatever torch, FX or core raise over its records, the file is at fault.
        raise PlanFormatError(f"{os.fspath(path)}: not a valid program: {type(error).__name__}: {str(error)[:500]}") from error


def _read_program(archive: ArchiveReader) -> SavedProgram:
    with archive.member(PROGRAM) as member:
        text = member.read(member.size)
    with archive.member(TENSORS) as member:
        blocks = read_blocks(member)
    content = parse_json(text, PROGRAM)
    record = take(content, "program", dict)
    tensors = TensorReader(take(content, "tensors", dict), blocks)
    segments = tuple(_read_segment(item, archive, tensors) for item in take_list(record, "segments", dict))
    submodules = {segment.name: segment.graph or UnboundSegment(segment.name) for segment in segments}
    if len(submodules) != len(segments):
        raise PlanFormatError("program: two segments have one name")
    expected = {PROGRAM, TENSORS} | {plan_member(segment.name, index) for segment in segments for index in range(len(segment.plans))}
    if archive.members != expected:
        raise PlanFormatError(f"program: members that nothing refers to: {sorted(archive.members - expected)[:20]}")
    rejections: list[Rejection] = [read_rejection(item) for item in take_list(record, "rejections", dict)]
    return SavedProgram(
        stitched=read_graph(take(record, "stitched", dict), "stitched", tensors, submodules),
        segments=segments,
        weights={name: tensors.at(place) for name, place in take(record, "weights", dict).items()},
        signature=take(record, "signature", dict),
        rejections=tuple(rejections),
    )


def _read_segment(record: Any, archive: ArchiveReader, tensors: TensorReader) -> SavedSegment:
    name, kind = take(record, "name", str), take(record, "kind", str)
    if not is_identifier(name) or kind not in ("engine", "torch"):
        raise PlanFormatError(f"segment {name[:100]!r}: expected an identifier and a kind, got kind {kind[:40]!r}")
    calls = tuple(take_list(record, "calls", str))
    if kind == "torch":
        graph = read_graph(take(record, "graph", dict), name, tensors)
        return SavedSegment(name, cast(Literal["torch"], kind), calls, None, graph, ())
    network = take(record, "network", dict)
    constants = {key: tensors.on_host(place) for key, place in take(network, "constants", dict).items()}
    plans = []
    for index, item in enumerate(take_list(record, "plans", dict)):
        with archive.member(plan_member(name, index)) as member:
            plans.append(read_plan(item, member.read_tensor(member.size)))
    return SavedSegment(
        name, cast(Literal["engine"], kind), calls, from_record(take(network, "record", dict), constants), None, tuple(plans)
    )
