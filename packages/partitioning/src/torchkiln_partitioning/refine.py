"""Moves of calls between levels of their kind that cut fewer bytes, at an equal number of segments."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from torchkiln_partitioning.levels import Dependencies, Kind


class Transfer(NamedTuple):
    """A tensor that crosses a border wherever a consumer runs in another segment than its producer, once for each such segment.

    Attributes:
        num_bytes: Its size.
        producer: The vertex that makes it, or ``None`` for an input of the program.
        consumers: The vertices that read it.
    """

    num_bytes: int
    producer: int | None
    consumers: tuple[int, ...]


def settle(graph: Dependencies, transfers: Sequence[Transfer], levels: Sequence[int]) -> list[int]:
    """Levels with no more segments and no more crossing bytes than ``levels``, which are the smallest alternating levels of ``graph``.

    One sweep against the order pulls makers towards their readers, one along the order pulls readers towards their makers. A call
    moves only where that cuts strictly fewer bytes, so the result is deterministic. Free vertices stay: their level bounds both sides.
    """
    moves = _Moves(transfers, list(levels))
    ceiling = _pull_up(graph, moves)
    if moves.count:
        _pull_down(graph, moves, ceiling)
    return moves.levels


def _pull_up(graph: Dependencies, moves: _Moves) -> list[int]:
    """The sweep against the order; the lowest level of those that depend on each vertex, which is final once the sweep comes to it."""
    kinds, predecessors, levels, free = graph.kinds, graph.predecessors, moves.levels, Kind.FREE
    ceiling = [max(levels, default=0)] * len(kinds)
    for vertex in range(len(kinds) - 1, -1, -1):
        level = levels[vertex]
        # Levels alternate in kind, so a call moves by two at least; none has a smaller level yet.
        if ceiling[vertex] - level > 1 and kinds[vertex] is not free:
            moves.improve(vertex, level, ceiling[vertex])
            level = levels[vertex]
        for other in predecessors[vertex]:
            if level < ceiling[other]:
                ceiling[other] = level
    return ceiling


def _pull_down(graph: Dependencies, moves: _Moves, ceiling: Sequence[int]) -> None:
    """The sweep along the order."""
    kinds, levels, free = graph.kinds, moves.levels, Kind.FREE
    for vertex, before in enumerate(graph.predecessors):
        lowest = 0
        for other in before:
            level = levels[other]
            if level > lowest:
                lowest = level
        here = levels[vertex]
        if (here - lowest > 1 or ceiling[vertex] - here > 1) and kinds[vertex] is not free:
            moves.improve(vertex, lowest, ceiling[vertex])


class _Moves:
    def __init__(self, transfers: Sequence[Transfer], levels: list[int]) -> None:
        self.levels = levels
        self.count = 0
        self._transfers = transfers
        # Per transfer, how many of its readers are on each level; counted when first asked for.
        self._readers: list[dict[int, int] | None] = [None] * len(transfers)

    def improve(self, vertex: int, low: int, high: int) -> None:
        """Moves a vertex to the lowest or highest level between those of its neighbours when that is cheaper than where it is."""
        here = self.levels[vertex]
        # Levels alternate in kind, so a level of the other kind rounds to the next one of this kind.
        low, high = low + (low - here) % 2, high - (high - here) % 2
        best = min(dict.fromkeys((here, low, high)), key=lambda level: (self._cost(vertex, level), level != here, level))
        if best != here:
            self._move(vertex, best)

    @functools.cached_property
    def _touching(self) -> tuple[list[list[int]], list[list[int]]]:
        """Numbers of the transfers that each vertex makes, and of those that it reads."""
        made: list[list[int]] = [[] for _ in self.levels]
        read: list[list[int]] = [[] for _ in self.levels]
        for number, (_, producer, consumers) in enumerate(self._transfers):
            if producer is not None:
                made[producer].append(number)
            for consumer in consumers:
                read[consumer].append(number)
        return made, read

    def _cost(self, vertex: int, level: int) -> int:
        here, cost = self.levels[vertex], 0
        made, read = self._touching
        for number in made[vertex]:
            readers = self._readers_of(number)
            cost += self._transfers[number].num_bytes * (len(readers) - (level in readers))
        for number in read[vertex]:
            transfer, readers = self._transfers[number], self._readers_of(number)
            alone = level not in readers or (level == here and readers[level] == 1)
            made_here = transfer.producer is not None and self.levels[transfer.producer] == level
            cost += transfer.num_bytes * (alone and not made_here)
        return cost

    def _move(self, vertex: int, level: int) -> None:
        here = self.levels[vertex]
        for number in self._touching[1][vertex]:
            readers = self._readers_of(number)
            readers[here] -= 1
            if not readers[here]:
                del readers[here]
            readers[level] = readers.get(level, 0) + 1
        self.levels[vertex] = level
        self.count += 1

    def _readers_of(self, number: int) -> dict[int, int]:
        readers = self._readers[number]
        if readers is None:
            readers = self._readers[number] = {}
            for consumer in self._transfers[number].consumers:
                level = self.levels[consumer]
                readers[level] = readers.get(level, 0) + 1
        return readers
