"""Moves of calls between levels of their kind that cut fewer bytes, at an equal number of segments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchkiln_partitioning.levels import Dependencies, Kind


@dataclass(frozen=True, slots=True)
class Transfer:
    """A tensor that crosses a border wherever a consumer runs in another segment than its producer.

    Attributes:
        num_bytes: Its size.
        producer: The vertex that makes it, or ``None`` for an input of the program.
        consumers: The vertices that read it.
    """

    num_bytes: int
    producer: int | None
    consumers: tuple[int, ...]


def crossing_bytes(transfers: Iterable[Transfer], levels: Sequence[int]) -> int:
    """Bytes that cross borders: each tensor counts once per segment that reads it and does not make it."""
    total = 0
    for transfer in transfers:
        readers = {levels[consumer] for consumer in transfer.consumers}
        if transfer.producer is not None:
            readers.discard(levels[transfer.producer])
        total += transfer.num_bytes * len(readers)
    return total


def settle(graph: Dependencies, transfers: Sequence[Transfer], levels: Sequence[int]) -> list[int]:
    """Levels with no more segments and no more crossing bytes than ``levels``, which are alternating levels of ``graph``.

    One sweep against the order pulls makers towards their readers, one along the order pulls readers towards their makers. A call
    moves only where that cuts strictly fewer bytes, so the result is deterministic. Free vertices stay: their level bounds both sides.
    """
    moves = _Moves(graph, transfers, list(levels))
    count = len(graph.kinds)
    for vertex in reversed(range(count)):
        moves.improve(vertex)
    for vertex in range(count):
        moves.improve(vertex)
    return moves.levels


class _Moves:
    def __init__(self, graph: Dependencies, transfers: Sequence[Transfer], levels: list[int]) -> None:
        self.levels = levels
        self._graph = graph
        self._successors = graph.successors()
        self._top = max(levels, default=0)
        self._transfers = transfers
        self._readers = [Counter(levels[consumer] for consumer in transfer.consumers) for transfer in transfers]
        self._made: list[list[int]] = [[] for _ in levels]
        self._read: list[list[int]] = [[] for _ in levels]
        for number, transfer in enumerate(transfers):
            if transfer.producer is not None:
                self._made[transfer.producer].append(number)
            for consumer in transfer.consumers:
                self._read[consumer].append(number)

    def improve(self, vertex: int) -> None:
        """Moves a vertex to the lowest or highest level that its neighbours allow when that is cheaper than where it is."""
        if self._graph.kinds[vertex] is Kind.FREE:
            return
        here = self.levels[vertex]
        low = max((self.levels[other] for other in self._graph.predecessors[vertex]), default=0)
        high = min((self.levels[other] for other in self._successors[vertex]), default=self._top)
        # Levels alternate in kind, so a level of the other kind rounds to the next one of this kind.
        low, high = low + (low - here) % 2, high - (high - here) % 2
        if low == high:
            return
        best = min((here, low, high), key=lambda level: (self._cost(vertex, level), level != here, level))
        if best != here:
            self._move(vertex, best)

    def _cost(self, vertex: int, level: int) -> int:
        here, cost = self.levels[vertex], 0
        for number in self._made[vertex]:
            readers = self._readers[number]
            cost += self._transfers[number].num_bytes * (len(readers) - (level in readers))
        for number in self._read[vertex]:
            transfer, readers = self._transfers[number], self._readers[number]
            alone = level not in readers or (level == here and readers[level] == 1)
            made_here = transfer.producer is not None and self.levels[transfer.producer] == level
            cost += transfer.num_bytes * (alone and not made_here)
        return cost

    def _move(self, vertex: int, level: int) -> None:
        for number in self._read[vertex]:
            readers = self._readers[number]
            readers[self.levels[vertex]] -= 1
            if not readers[self.levels[vertex]]:
                del readers[self.levels[vertex]]
            readers[level] += 1
        self.levels[vertex] = level
