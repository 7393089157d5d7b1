"""Groups of calls: levels, moves, calls that may not be merged, and engines too small to pay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch.fx

from torchkiln_core.rejection import Rejection
from torchkiln_partitioning.effects import bodies_of
from torchkiln_partitioning.levels import Kind, best_levels
from torchkiln_partitioning.placement import CallGraph, Placement, depend
from torchkiln_partitioning.refine import settle
from torchkiln_partitioning.traffic import find_transfers
from torchkiln_partitioning.view import do_not_merge


@dataclass(frozen=True, slots=True)
class Group:
    """The calls of one segment, in graph order."""

    kind: Kind
    calls: tuple[torch.fx.Node, ...]


@dataclass(frozen=True, slots=True)
class Division:
    """Groups in call order, with the placement that they realise."""

    placement: Placement
    groups: tuple[Group, ...]


def divide(placement: Placement) -> Division:
    """The division with the fewest segments, and among those one with little traffic."""
    calls = depend(placement)
    levels = settle(calls.graph, find_transfers(placement, calls), best_levels(calls.graph))
    return Division(placement, _group(placement, calls, levels))


def divide_with_payoff(placement: Placement, judge: Callable[[Division], Mapping[torch.fx.Node, Rejection]]) -> Division:
    """A division whose engine segments all pay, or that is one engine segment.

    Calls of segments that ``judge`` refuses move to PyTorch and the program is divided anew. Where that leaves such segments again, the
    first division stays, with those segments merged into the PyTorch segments around them: one more round at most, whatever the graph.
    """
    first = divide(placement)
    refused = judge(first)
    if not refused:
        return first
    rest = placement.without(refused)
    second = divide(rest)
    return _merged(first, rest) if judge(second) else second


def call_count(placement: Placement, calls: Sequence[torch.fx.Node], copies: int) -> int:
    """Operators that a segment runs, with those in the bodies of higher-order calls and its ``copies`` of cheap ones."""
    total = copies
    waiting = [(node, placement.view.program.module) for node in calls]
    while waiting:
        node, module = waiting.pop()
        bodies = bodies_of(node, module)
        total += not bodies
        waiting.extend((part, body) for body in bodies for part in body.graph.nodes if part.op == "call_function")
    return total


def _merged(division: Division, placement: Placement) -> Division:
    """The groups of ``division`` in their order with the kinds of ``placement``; neighbours in PyTorch become one."""
    index = placement.view.index
    runs: list[tuple[Kind, list[torch.fx.Node]]] = []
    for group in division.groups:
        kind = placement.kinds[group.calls[0]]
        alone = any(do_not_merge(node) for node in group.calls)
        if runs and kind is Kind.TORCH is runs[-1][0] and not alone and not any(do_not_merge(node) for node in runs[-1][1]):
            runs[-1][1].extend(group.calls)
        else:
            runs.append((kind, list(group.calls)))
    return Division(placement, tuple(Group(kind, tuple(sorted(calls, key=index.__getitem__))) for kind, calls in runs))


def _group(placement: Placement, calls: CallGraph, levels: Sequence[int]) -> tuple[Group, ...]:
    rounds = _rounds(calls, levels)
    members: dict[tuple[int, int, int], list[torch.fx.Node]] = {}
    for node, vertex in calls.calls():
        alone = placement.view.index[node] if do_not_merge(node) else -1
        members.setdefault((levels[vertex], rounds[vertex], alone), []).append(node)
    return tuple(Group(placement.kinds[nodes[0]], tuple(nodes)) for _, nodes in sorted(members.items()))


def _rounds(calls: CallGraph, levels: Sequence[int]) -> list[int]:
    """Order inside of a level that has calls with a segment of their own: every edge to or from one starts another round."""
    alone: Mapping[int, bool] = {vertex: do_not_merge(node) for node, vertex in calls.calls()}
    rounds: list[int] = []
    for vertex, before in enumerate(calls.graph.predecessors):
        # A free vertex carries the round of its highest level, the only one that can be its reader's.
        same = [other for other in before if levels[other] == levels[vertex]]
        lonely = alone.get(vertex, False)
        rounds.append(max((rounds[other] + (lonely or alone.get(other, False)) for other in same), default=0))
    return rounds
