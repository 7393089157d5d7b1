"""What happens to segments that cannot be compiled: their guilty call, or all their calls, go to PyTorch, and the rest is kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

import torch
import torch.fx

from torchkiln.bodies import Body, find_bodies
from torchkiln.engines import device_of
from torchkiln.fallback_warning import warn_of_fallback
from torchkiln_core import CompileError, InternalError, Partition, Program, Rejection, Segment
from torchkiln_core.rejection import target_name

Made = TypeVar("Made")


def compile_segments(
    divide: Callable[[Mapping[str, Rejection]], Partition],
    make: Callable[[Segment, Program], Made],
    *,
    required: bool,
    judge: Callable[[Made, Program], str | None] | None = None,
) -> tuple[Partition, dict[str, Made]]:
    """Divides a program and makes something of each engine segment, until every engine segment of the division is made.

    What fails, or is judged to be faster in PyTorch, moves there and the program is divided anew; a segment that comes out as before is
    neither made nor judged again.

    Args:
        divide: The division, given why calls cannot be in engines, by node name.
        make: Converts, or converts and builds.
        required: Whether a failure ends it; then nothing is judged.
        judge: Says why a segment that was made should run in PyTorch all the same, or ``None``.

    Returns:
        The division, and what was made by name of segment.

    Raises:
        CompileError: No valid division, a failure while ``required``, or one of calls that the division does not move.
        InternalError: The same, from a promise of torchkiln that is broken.
    """
    refused: dict[str, Rejection] = {}
    known: dict[Hashable, Made] = {}
    while True:
        partition = divide(refused)
        made: dict[str, Made] = {}
        failures: dict[str, Rejection] = {}
        judged: dict[str, Rejection] = {}
        for segment in partition.segments:
            if segment.kind != "engine":
                continue
            content = _content(segment)
            try:
                if content not in known:
                    known[content] = make(segment, partition.program)
                    reason = None if judge is None or required else judge(known[content], partition.program)
                    if reason is not None:
                        judged |= _all_calls(segment, "benchmark", reason)
                made[segment.name] = known[content]
            except (CompileError, InternalError) as error:
                if required:
                    raise
                moved = _fall_back(segment, error, refused)
                if moved.keys() <= refused.keys():
                    raise
                failures |= moved
        # Cheap calls that every reader has a copy of cannot move by themselves; their segment stays.
        if failures or not judged.keys() <= refused.keys():
            refused |= judged | failures
        else:
            return partition, made


def compile_bodies(partition: Partition, device: torch.device, make: Callable[[Body], Made]) -> tuple[Partition, list[tuple[Body, Made]]]:
    """Makes something of each graph that a higher-order call in PyTorch runs.

    Args:
        partition: The division whose segments in PyTorch hold the calls.
        device: Where engines run.
        make: Lowers, divides and compiles a graph.

    Returns:
        The division, with a rejection of each graph of which nothing could be made, and what was made.
    """
    made: list[tuple[Body, Made]] = []
    refused: list[Rejection] = []
    for found in find_bodies(partition):
        if isinstance(found, Rejection):
            refused.append(found)
            continue
        place = device_of(found.program.module)
        if place != device:
            refused.append(found.refuse(f"expected a graph that runs on {device}, where the engines are, got one on {place}"))
            continue
        try:
            made.append((found, make(found)))
        except (CompileError, InternalError) as error:
            warn_of_fallback(f"{found.path} runs in PyTorch: {error}")
            refused.append(found.refuse(str(error).splitlines()[0]))
    return dataclasses.replace(partition, rejections=(*partition.rejections, *refused)), made


def _content(segment: Segment) -> Hashable:
    """What a segment consists of; nodes keep their names in every division of a program."""
    calls = tuple((node.name, str(node.args), str(node.kwargs)) for node in segment.module.graph.nodes)
    return segment.inputs, segment.weights, segment.outputs, calls


def _fall_back(segment: Segment, error: CompileError | InternalError, refused: Mapping[str, Rejection]) -> dict[str, Rejection]:
    """The guilty call when the error names it or one of its layers, else every call of the segment; warns with the reason.

    A call that was refused and is still there is a cheap one, which every segment that reads it has a copy of: all calls move.
    """
    calls = {node.name: node for node in segment.module.graph.nodes if node.op == "call_function"}
    named = (error.node if isinstance(error, CompileError) else error.layer) or ""
    guilty = calls.get(named) or calls.get(named.partition("/")[0])
    if guilty is not None and guilty.name in refused:
        guilty = None
    moved = list(calls.values()) if guilty is None else [guilty]
    what = (
        f"{segment.name} ({len(segment.calls)} calls)"
        if guilty is None
        else f"{guilty.name} ({target_name(guilty.target)}) of {segment.name}"
    )
    warn_of_fallback(f"{what} runs in PyTorch: {error}")
    message = str(error).splitlines()[0]
    return {node.name: Rejection.of_node(node, "build-failed", message) for node in moved}


def _all_calls(segment: Segment, rule: str, message: str) -> dict[str, Rejection]:
    calls = [node for node in segment.module.graph.nodes if node.op == "call_function"]
    return {node.name: Rejection.of_node(node, rule, message) for node in calls}
