"""Levels of an abstract dependency graph: which calls share a segment, with the fewest segments possible."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field


class Kind(enum.Enum):
    """Where a vertex runs."""

    ENGINE = "engine"
    TORCH = "torch"
    FREE = "free"
    """Costs nothing on either side, so it belongs to no segment; it only hands dependencies on."""


@dataclass(slots=True)
class Dependencies:
    """Vertices ``0..n-1`` in topological order with their kinds and predecessors; grows by ``add`` only.

    Order constraints (effects) are edges like those of data: no vertex runs in an earlier segment than a predecessor.
    """

    kinds: list[Kind] = field(default_factory=list)
    predecessors: list[tuple[int, ...]] = field(default_factory=list)

    def add(self, kind: Kind, predecessors: Sequence[int]) -> int:
        """Appends a vertex and returns its number."""
        self.kinds.append(kind)
        self.predecessors.append(tuple(predecessors) if len(predecessors) < 2 else tuple(dict.fromkeys(predecessors)))
        return len(self.kinds) - 1


def assign_levels(graph: Dependencies, first: Kind) -> list[int]:
    """The smallest level of every vertex when even levels have kind ``first`` and odd levels the other kind.

    A level is at least as high as those of its predecessors. A free vertex gets the highest level that it hands on.
    """
    levels: list[int] = []
    append, free = levels.append, Kind.FREE
    for kind, before in zip(graph.kinds, graph.predecessors, strict=True):
        lowest = 0
        for other in before:
            level = levels[other]
            if level > lowest:
                lowest = level
        # A level has kind `first` exactly where it is even.
        append(lowest if kind is free or (lowest % 2 == 0) is (kind is first) else lowest + 1)
    return levels


def best_levels(graph: Dependencies) -> list[int]:
    """Levels with the fewest segments; on a tie those with fewer engine segments, then engine first.

    One segment per level is acyclic by construction, and no valid division has fewer segments: the longest chain that alternates in
    kind needs one segment per element, and a level is entered only because such a chain reaches it.
    """
    candidates = [assign_levels(graph, first) for first in (Kind.ENGINE, Kind.TORCH)]
    return min(candidates, key=lambda levels: segment_counts(graph, levels))


def segment_counts(graph: Dependencies, levels: Sequence[int]) -> tuple[int, int]:
    """Numbers of all segments and of engine segments, one segment per level in use."""
    engine, free = Kind.ENGINE, Kind.FREE
    used = {level: kind for level, kind in zip(levels, graph.kinds, strict=True) if kind is not free}
    return len(used), sum(kind is engine for kind in used.values())
