"""Writes the graph that calls the segments, and with it the partition."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch.fx
from torch.fx.node import map_arg

from torchkiln_core.partition import Partition, Segment
from torchkiln_partitioning.divide import Division
from torchkiln_partitioning.draft import Draft, homes_of
from torchkiln_partitioning.levels import Kind
from torchkiln_partitioning.placement import Placement
from torchkiln_partitioning.segments import copy_placeholder, copy_shape_read, graph_module, kind_name, write_segment
from torchkiln_partitioning.sizes import DimOf, Literal
from torchkiln_partitioning.view import NOBODY, Role


def stitch(division: Division, drafts: Sequence[Draft]) -> Partition:
    """The partition of a division whose segments have been drafted."""
    placement = division.placement
    view = placement.view
    results = view.result_positions()
    checks = [position for position, role in enumerate(view.roles) if role is Role.CHECK]
    outside = _outside(placement, [*(read for draft in drafts for read in draft.inputs), *results, *checks])
    used = {read for draft in drafts for read in draft.inputs} | results
    used |= {read for position in outside for read in _reads(placement, position)}
    segments: list[Segment] = []
    outputs: list[tuple[int, ...]] = []
    for number, draft in enumerate(drafts):
        made = tuple(position for position in draft.computed() if position in used and placement.owners[position] != NOBODY)
        segments.append(write_segment(f"{kind_name(draft.kind)}_{number}", draft, made, view))
        outputs.append(made)
    weights = _stitched_weights(placement, drafts, used | outside)
    writer = _Writer(placement, weights)
    homes = homes_of(division)
    due: dict[int, list[int]] = {}
    for position in checks:
        due.setdefault(homes[position], []).append(position)
    writer.check(due.get(NOBODY, ()))
    for number, (segment, draft, made) in enumerate(zip(segments, drafts, outputs, strict=True)):
        writer.call(segment, draft, made)
        writer.check(due.get(number, ()))
    module = writer.finish(segments)
    rejections = tuple(rejection for _, rejection in sorted(placement.rejections.items()))
    return Partition(view.program, module, tuple(view.nodes[position].name for position in weights), tuple(segments), rejections)


def _reads(placement: Placement, position: int) -> Sequence[int]:
    """What a number or copy in the stitched graph itself reads."""
    match placement.outside_source(position):
        case DimOf(tensor, _):
            return [tensor]
        case Literal():
            return []
        case None:
            return placement.view.reads[position]


def _outside(placement: Placement, wanted: Iterable[int]) -> set[int]:
    """Numbers, checks and cheap calls that the stitched graph runs itself."""
    found: set[int] = set()
    waiting = list(wanted)
    while waiting:
        position = waiting.pop()
        free = placement.view.roles[position] in (Role.SIZE, Role.CHECK) or position in placement.copied
        if free and position not in found:
            found.add(position)
            waiting.extend(_reads(placement, position))
    return found


def _stitched_weights(placement: Placement, drafts: Sequence[Draft], used: set[int]) -> list[int]:
    wanted = {position for draft in drafts if draft.kind is Kind.TORCH for position in draft.weights}
    wanted |= {position for position in used if placement.view.roles[position] is Role.WEIGHT}
    return sorted(wanted)


class _Writer:
    def __init__(self, placement: Placement, weights: Sequence[int]) -> None:
        self._placement = placement
        self._nodes = placement.view.nodes
        self._graph = torch.fx.Graph()
        inputs = [position for position, role in enumerate(placement.view.roles) if role is Role.INPUT]
        self._values: dict[torch.fx.Node, Any] = {}
        for position in (*inputs, *weights):
            self._values[self._nodes[position]] = copy_placeholder(self._graph, self._nodes[position])

    def call(self, segment: Segment, draft: Draft, outputs: Sequence[int]) -> None:
        """Calls a segment; an engine holds its weights, a PyTorch segment is given them."""
        arguments = (*draft.inputs, *(draft.weights if draft.kind is Kind.TORCH else ()))
        self._make(arguments)
        result = self._graph.call_module(segment.name, tuple(self._values[self._nodes[position]] for position in arguments))
        made = [self._nodes[position] for position in outputs]
        result.meta["val"] = tuple(node.meta["val"] for node in made)
        for place, node in enumerate(made):
            value = self._graph.create_node("call_function", operator.getitem, (result, place), name=node.name)
            value.meta = copy.copy(node.meta)
            self._values[node] = value

    def check(self, checks: Iterable[int]) -> None:
        """Runs checks whose numbers are known."""
        self._make(checks)

    def finish(self, segments: Sequence[Segment]) -> torch.fx.GraphModule:
        """Returns the program's results; those that no segment makes pass around them."""
        self._make(self._placement.view.result_positions())
        self._graph.output(map_arg(self._placement.view.results, self._values.__getitem__))
        return graph_module({segment.name: segment.module for segment in segments}, self._graph, "Stitched")

    def _make(self, wanted: Iterable[int]) -> None:
        """Runs the numbers and cheap calls that are needed next."""
        missing: set[int] = set()
        waiting = list(wanted)
        while waiting:
            position = waiting.pop()
            if self._nodes[position] not in self._values and position not in missing:
                missing.add(position)
                waiting.extend(_reads(self._placement, position))
        for position in sorted(missing):
            node = self._nodes[position]
            match self._placement.outside_source(position):
                case Literal(value):
                    self._values[node] = value
                case DimOf(tensor, dim):
                    self._values[node] = copy_shape_read(self._graph, node, self._values[self._nodes[tensor]], dim)
                case None:
                    self._values[node] = self._graph.node_copy(node, self._values.__getitem__)
