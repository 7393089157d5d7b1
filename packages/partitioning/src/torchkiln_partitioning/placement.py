"""``Placement``: where each call runs, and the dependencies that follow from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchkiln_core.rejection import Rejection
from torchkiln_partitioning.effects import Effect
from torchkiln_partitioning.levels import Dependencies, Kind
from torchkiln_partitioning.sizes import DimOf, Literal, Recomputed, SizeRecipes
from torchkiln_partitioning.view import NOBODY, ProgramView, Role
from torchkiln_partitioning.workload import Workload


@dataclass(frozen=True, slots=True)
class Placement:
    """Where each call runs; nodes are given by their positions in ``view``.

    Attributes:
        view: The program.
        recipes: How engine segments obtain numbers.
        kinds: ``ENGINE`` or ``TORCH`` per call that runs once, in graph order.
        copied: Cheap calls of which each reader has its own copy.
        owners: The call in ``kinds`` that each value comes from, or ``NOBODY``.
        rejections: Why calls stay in PyTorch.
        work: Operations and bytes of calls.
    """

    view: ProgramView
    recipes: SizeRecipes
    kinds: Mapping[int, Kind]
    copied: frozenset[int]
    owners: Sequence[int]
    rejections: Mapping[int, Rejection]
    work: Workload

    def without(self, refused: Mapping[int, Rejection]) -> Placement:
        """The placement with further calls in PyTorch."""
        kinds = {**self.kinds, **dict.fromkeys(refused.keys() & self.kinds.keys(), Kind.TORCH)}
        return dataclasses.replace(self, kinds=kinds, rejections={**self.rejections, **refused})

    def copies_for(self, calls: Iterable[int]) -> list[int]:
        """The cheap calls that a segment with ``calls`` has copies of, in graph order."""
        if not self.copied:
            return []
        found: set[int] = set()
        waiting = list(calls)
        while waiting:
            for other in self.view.reads[waiting.pop()]:
                if other in self.copied and other not in found:
                    found.add(other)
                    waiting.append(other)
        return sorted(found)

    def outside_source(self, number: int) -> Literal | DimOf | None:
        """What stands for a computed number outside of engines too, because it is known before any segment runs."""
        recipe = self.recipes.recipes.get(number)
        if recipe is None or self.view.roles[number] is not Role.SIZE or isinstance(recipe, Recomputed) or number in self.view.unproven:
            return None
        return recipe if isinstance(recipe, Literal) or self.view.roles[recipe.tensor] is Role.INPUT else None


def place(view: ProgramView, recipes: SizeRecipes, rejections: Mapping[int, Rejection]) -> Placement:
    """The placement in which every call that is not rejected runs in an engine."""
    kinds: dict[int, Kind] = {}
    copied: set[int] = set()
    owners = list(view.owners)
    engine, torch, cheap = Kind.ENGINE, Kind.TORCH, Role.CHEAP
    for position in view.operators():
        rejected = position in rejections
        # A view of something that runs once is no cheaper than any other call.
        if view.roles[position] is cheap and not rejected and not _views_a_call(view, owners, position):
            copied.add(position)
            continue
        kinds[position] = torch if rejected else engine
        owners[position] = position
    return Placement(view, recipes, kinds, frozenset(copied), owners, rejections, Workload(view))


def _views_a_call(view: ProgramView, owners: Sequence[int], position: int) -> bool:
    return any(owners[other] != NOBODY and view.sizes[other] is not None for other in view.reads[position])


@dataclass(frozen=True, slots=True)
class CallGraph:
    """The dependencies of a placement: ``graph`` has one vertex per call and free ones for numbers and copies.

    ``vertices`` holds those of the calls by position, in graph order.
    """

    graph: Dependencies
    vertices: Mapping[int, int]

    def recoloured(self, placement: Placement) -> CallGraph | None:
        """The graph of a placement of the same calls in other kinds, or ``None`` where its edges depend on kinds: with free vertices."""
        if len(self.graph.kinds) > len(self.vertices):
            return None
        return CallGraph(Dependencies(list(placement.kinds.values()), self.graph.predecessors), self.vertices)


def depend(placement: Placement) -> CallGraph:
    """The dependencies of every call: data, numbers that an engine reads from shapes, and the order of effects."""
    return _Builder(placement).build()


class _Builder:
    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._view = placement.view
        self._graph = Dependencies()
        self._vertices: dict[int, int] = {}
        self._free: dict[tuple[int, Kind], int] = {}
        self._barrier: list[int] = []
        self._since_barrier: list[int] = []
        self._last_effect: list[int] = []

    def build(self) -> CallGraph:
        sizes, reads, effects = self._view.sizes, self._view.reads, self._view.effects
        owners, copied, vertices, add = self._placement.owners, self._placement.copied, self._vertices, self._graph.add
        for position, kind in self._placement.kinds.items():
            before: list[int] = []
            for other in reads[position]:
                owner = owners[other]
                if sizes[other] is None or other in copied:
                    before.extend(self._read(other, kind))
                elif owner >= 0:
                    before.append(vertices[owner])
            if effects:
                before += self._order(effects.get(position))
            vertex = vertices[position] = add(kind, before)
            if effects:
                self._remember(effects.get(position), vertex)
        return CallGraph(self._graph, vertices)

    def _order(self, effect: Effect | None) -> list[int]:
        """What a call waits for besides what it reads."""
        before = list(self._barrier)
        if effect is not None:
            before += self._last_effect
        if effect is Effect.WRITES:
            before += self._since_barrier
        return before

    def _remember(self, effect: Effect | None, vertex: int) -> None:
        self._since_barrier.append(vertex)
        if effect is not None:
            self._last_effect = [vertex]
        if effect is Effect.WRITES:
            self._barrier, self._since_barrier = [vertex], []

    def _read(self, position: int, kind: Kind) -> tuple[int, ...]:
        """The vertex that a reader of ``kind`` depends on for a value; makes those of numbers and copies, deepest first."""
        waiting = [(position, kind)]
        while waiting:
            reading = waiting[-1]
            if self._vertex(reading) is not None:
                waiting.pop()
                continue
            inputs = self._inputs(*reading)
            missing = [other for other in inputs if self._vertex(other) is None]
            if missing:
                waiting.extend(missing)
                continue
            before = [vertex for other in inputs if (vertex := self._vertex(other)) is not None]
            self._free[reading] = self._graph.add(Kind.FREE, before)
        vertex = self._vertex((position, kind))
        return () if vertex is None else (vertex,)

    def _vertex(self, reading: tuple[int, Kind]) -> int | None:
        position, kind = reading
        owner = self._placement.owners[position]
        if owner != NOBODY and not (kind is Kind.ENGINE and position in self._view.numbers):
            return self._vertices[owner]
        return self._free.get(reading)

    def _inputs(self, position: int, kind: Kind) -> list[tuple[int, Kind]]:
        if kind is Kind.TORCH or position not in self._view.numbers:
            known = self._placement.outside_source(position) is not None
            return [] if known else [(other, kind) for other in self._view.reads[position]]
        # An engine's number also waits for whatever PyTorch would take it from: then moving the reader to PyTorch keeps the order valid.
        inputs = [(position, Kind.TORCH)]
        match self._placement.recipes.recipes[position]:
            case DimOf(tensor, _):
                inputs.append((tensor, kind))
            case Recomputed(original):
                inputs.extend((other, kind) for other in self._view.reads[original])
            case Literal():
                pass
        return inputs
