"""Groups of calls: levels, moves, calls that may not be merged, and engines too small to pay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torchkiln_core.rejection import Rejection
from torchkiln_partitioning.effects import calls_inside, graphs_of
from torchkiln_partitioning.levels import Kind, best_levels
from torchkiln_partitioning.placement import CallGraph, Placement, depend
from torchkiln_partitioning.refine import Transfer, settle
from torchkiln_partitioning.traffic import find_transfers


@dataclass(frozen=True, slots=True)
class Group:
    """The calls of one segment by position, in graph order."""

    kind: Kind
    calls: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Division:
    """Groups in call order, with the placement that they realise."""

    placement: Placement
    groups: tuple[Group, ...]


def _into_fewest(placement: Placement, calls: CallGraph, transfers: Sequence[Transfer]) -> Division:
    """The division with the fewest segments, and among those one with little traffic."""
    levels = settle(calls.graph, transfers, best_levels(calls.graph))
    return Division(placement, _group(placement, calls, levels))


def divide(placement: Placement, judge: Callable[[Division], Mapping[int, Rejection]]) -> Division:
    """A division whose engine segments all pay, or that is one engine segment.

    Calls of segments that ``judge`` refuses move to PyTorch and the program is divided anew. Where that leaves such segments again, the
    first division stays, with those segments merged into the PyTorch segments around them: one more round at most, whatever the graph.
    """
    calls = depend(placement)
    transfers = find_transfers(placement, calls)
    first = _into_fewest(placement, calls, transfers)
    refused = judge(first)
    if not refused:
        return first
    rest = placement.without(refused)
    recoloured = calls.recoloured(rest)
    if recoloured is None:
        recoloured = depend(rest)
        transfers = find_transfers(rest, recoloured)
    second = _into_fewest(rest, recoloured, transfers)
    return _merged(first, rest) if judge(second) else second


def call_count(placement: Placement, calls: Sequence[int]) -> int:
    """Operators that a segment runs, with those in the bodies of higher-order calls and its copies of cheap ones."""
    view = placement.view
    total = len(placement.copies_for(calls)) + len(calls)
    for call in view.whole.intersection(calls) if view.whole else ():
        node, module = view.nodes[call], view.program.module
        inner = calls_inside(node, module)
        # A call that runs graphs counts as what is in them.
        total += len(inner) - sum(bool(graphs_of(*each)) for each in [(node, module), *inner])
    return total


def _merged(division: Division, placement: Placement) -> Division:
    """The groups of ``division`` in their order with the kinds of ``placement``; neighbours in PyTorch become one."""
    whole = placement.view.whole
    runs: list[tuple[Kind, list[int]]] = []
    for group in division.groups:
        kind = placement.kinds[group.calls[0]]
        alone = not whole.isdisjoint(group.calls)
        if runs and kind is Kind.TORCH is runs[-1][0] and not alone and whole.isdisjoint(runs[-1][1]):
            runs[-1][1].extend(group.calls)
        else:
            runs.append((kind, list(group.calls)))
    return Division(placement, tuple(Group(kind, tuple(sorted(calls))) for kind, calls in runs))


def _group(placement: Placement, calls: CallGraph, levels: Sequence[int]) -> tuple[Group, ...]:
    if placement.view.whole:
        return _group_around(placement, calls, levels)
    members: list[list[int]] = [[] for _ in range(max(levels, default=-1) + 1)]
    for call, vertex in calls.vertices.items():
        members[levels[vertex]].append(call)
    return tuple(Group(placement.kinds[found[0]], tuple(found)) for found in members if found)


def _group_around(placement: Placement, calls: CallGraph, levels: Sequence[int]) -> tuple[Group, ...]:
    """As ``_group`` where calls have segments of their own."""
    whole = placement.view.whole
    rounds = _rounds(calls, levels, whole)
    members: dict[tuple[int, int, int], list[int]] = {}
    for call, vertex in calls.vertices.items():
        members.setdefault((levels[vertex], rounds[vertex], call if call in whole else -1), []).append(call)
    return tuple(Group(placement.kinds[found[0]], tuple(found)) for _, found in sorted(members.items()))


def _rounds(calls: CallGraph, levels: Sequence[int], whole: frozenset[int]) -> list[int]:
    """Order inside of a level that has calls with a segment of their own: every edge to or from one starts another round."""
    alone: Mapping[int, bool] = {vertex: call in whole for call, vertex in calls.vertices.items()}
    rounds: list[int] = []
    for vertex, before in enumerate(calls.graph.predecessors):
        # A free vertex carries the round of its highest level, the only one that can be its reader's.
        same = [other for other in before if levels[other] == levels[vertex]]
        lonely = alone.get(vertex, False)
        rounds.append(max((rounds[other] + (lonely or alone.get(other, False)) for other in same), default=0))
    return rounds
