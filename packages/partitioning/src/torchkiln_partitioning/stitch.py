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
from torchkiln_partitioning.draft import Draft, Homes
from torchkiln_partitioning.levels import Kind
from torchkiln_partitioning.placement import Placement
from torchkiln_partitioning.segments import copy_node, copy_placeholder, copy_shape_read, graph_module, kind_name, write_segment
from torchkiln_partitioning.sizes import DimOf, Literal
from torchkiln_partitioning.view import Role


def stitch(division: Division, drafts: Sequence[Draft]) -> Partition:
    """The partition of a division whose segments have been drafted."""
    placement = division.placement
    view = placement.view
    results = [value for value in view.results if isinstance(value, torch.fx.Node)]
    checks = [node for node in view.nodes if view.roles[node] is Role.CHECK]
    outside = _outside(placement, [*(node for draft in drafts for node in draft.inputs), *results, *checks])
    used = {node for draft in drafts for node in draft.inputs} | set(results)
    used |= {read for node in outside for read in _reads(placement, node)}
    segments: list[Segment] = []
    outputs: list[tuple[torch.fx.Node, ...]] = []
    for number, draft in enumerate(drafts):
        made = tuple(node for node in draft.body if node in used and node in placement.owners)
        segments.append(write_segment(f"{kind_name(draft.kind)}_{number}", draft, made, view))
        outputs.append(made)
    weights = _stitched_weights(placement, drafts, used | outside)
    writer = _Writer(placement, weights)
    homes = Homes.of(division).number
    due: dict[int, list[torch.fx.Node]] = {}
    for node in checks:
        due.setdefault(homes[node], []).append(node)
    writer.check(due.get(-1, ()))
    for number, (segment, draft, made) in enumerate(zip(segments, drafts, outputs, strict=True)):
        writer.call(segment, draft, made)
        writer.check(due.get(number, ()))
    module = writer.finish(segments)
    rejections = tuple(placement.rejections[node] for node in view.nodes if node in placement.rejections)
    return Partition(view.program, module, tuple(node.name for node in weights), tuple(segments), rejections)


def _reads(placement: Placement, node: torch.fx.Node) -> list[torch.fx.Node]:
    """What a number or copy in the stitched graph itself reads."""
    match placement.outside_source(node):
        case DimOf(tensor, _):
            return [tensor]
        case Literal():
            return []
        case None:
            return node.all_input_nodes


def _outside(placement: Placement, wanted: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
    """Numbers, checks and cheap calls that the stitched graph runs itself."""
    found: set[torch.fx.Node] = set()
    waiting = list(wanted)
    while waiting:
        node = waiting.pop()
        free = placement.view.roles[node] in (Role.SIZE, Role.CHECK) or node in placement.copied
        if free and node not in found:
            found.add(node)
            waiting.extend(_reads(placement, node))
    return found


def _stitched_weights(placement: Placement, drafts: Sequence[Draft], used: set[torch.fx.Node]) -> tuple[torch.fx.Node, ...]:
    wanted = {node for draft in drafts if draft.kind is Kind.TORCH for node in draft.weights}
    wanted |= {node for node in used if placement.view.roles[node] is Role.WEIGHT}
    return tuple(node for node in placement.view.nodes if node in wanted)


class _Writer:
    def __init__(self, placement: Placement, weights: Sequence[torch.fx.Node]) -> None:
        self._placement = placement
        self._graph = torch.fx.Graph()
        inputs = [node for node in placement.view.nodes if placement.view.roles[node] is Role.INPUT]
        self._values: dict[torch.fx.Node, Any] = {node: copy_placeholder(self._graph, node) for node in (*inputs, *weights)}

    def call(self, segment: Segment, draft: Draft, outputs: Sequence[torch.fx.Node]) -> None:
        """Calls a segment; an engine holds its weights, a PyTorch segment is given them."""
        arguments = (*draft.inputs, *(draft.weights if draft.kind is Kind.TORCH else ()))
        self._make(arguments)
        result = self._graph.call_module(segment.name, tuple(self._values[node] for node in arguments))
        result.meta["val"] = tuple(node.meta["val"] for node in outputs)
        for position, node in enumerate(outputs):
            value = self._graph.create_node("call_function", operator.getitem, (result, position), name=node.name)
            value.meta = copy.copy(node.meta)
            self._values[node] = value

    def check(self, checks: Iterable[torch.fx.Node]) -> None:
        """Runs checks whose numbers are known."""
        self._make(checks)

    def finish(self, segments: Sequence[Segment]) -> torch.fx.GraphModule:
        """Returns the program's results; those that no segment makes pass around them."""
        results = self._placement.view.results
        self._make([value for value in results if isinstance(value, torch.fx.Node)])
        self._graph.output(map_arg(tuple(results), self._values.__getitem__))
        return graph_module({segment.name: segment.module for segment in segments}, self._graph, "Stitched")

    def _make(self, wanted: Iterable[torch.fx.Node]) -> None:
        """Runs the numbers and cheap calls that are needed next."""
        missing: set[torch.fx.Node] = set()
        waiting = list(wanted)
        while waiting:
            node = waiting.pop()
            if node not in self._values and node not in missing:
                missing.add(node)
                waiting.extend(_reads(self._placement, node))
        for node in sorted(missing, key=self._placement.view.index.__getitem__):
            match self._placement.outside_source(node):
                case Literal(value):
                    self._values[node] = value
                case DimOf() as source:
                    self._values[node] = copy_shape_read(self._graph, node, source, self._values)
                case None:
                    self._values[node] = copy_node(self._graph, node, self._values)
