"""``Placement``: where each call runs, and the dependencies that follow from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch.fx

from torchkiln_core.rejection import Rejection
from torchkiln_partitioning.effects import Effect
from torchkiln_partitioning.levels import Dependencies, Kind
from torchkiln_partitioning.sizes import DimOf, Literal, Recomputed, SizeRecipes, is_number
from torchkiln_partitioning.view import ProgramView, Role, is_tensor
from torchkiln_partitioning.work import WorkEstimator


@dataclass(frozen=True, slots=True)
class Placement:
    """Where each call runs.

    Attributes:
        view: The program.
        recipes: How engine segments obtain numbers.
        kinds: ``ENGINE`` or ``TORCH`` per call that runs once, in graph order.
        copied: Cheap calls of which each reader has its own copy.
        owners: The call in ``kinds`` that a value comes from.
        rejections: Why calls stay in PyTorch.
        work: Operations and bytes of calls.
    """

    view: ProgramView
    recipes: SizeRecipes
    kinds: Mapping[torch.fx.Node, Kind]
    copied: frozenset[torch.fx.Node]
    owners: Mapping[torch.fx.Node, torch.fx.Node]
    rejections: Mapping[torch.fx.Node, Rejection]
    work: WorkEstimator

    def without(self, refused: Mapping[torch.fx.Node, Rejection]) -> Placement:
        """The placement with further calls in PyTorch."""
        kinds = {node: Kind.TORCH if node in refused else kind for node, kind in self.kinds.items()}
        return dataclasses.replace(self, kinds=kinds, rejections={**self.rejections, **refused})

    def copies_for(self, calls: Iterable[torch.fx.Node]) -> list[torch.fx.Node]:
        """The cheap calls that a segment with ``calls`` has copies of, in graph order."""
        if not self.copied:
            return []
        found: set[torch.fx.Node] = set()
        waiting = list(calls)
        while waiting:
            for other in waiting.pop().all_input_nodes:
                if other in self.copied and other not in found:
                    found.add(other)
                    waiting.append(other)
        return sorted(found, key=self.view.index.__getitem__)

    def outside_source(self, number: torch.fx.Node) -> Literal | DimOf | None:
        """What stands for a computed number outside of engines too, because it is known before any segment runs."""
        recipe = self.recipes.recipes.get(number)
        if self.view.roles[number] is not Role.SIZE or recipe is None or isinstance(recipe, Recomputed):
            return None
        return recipe if isinstance(recipe, Literal) or self.view.roles[recipe.tensor] is Role.INPUT else None


def place(view: ProgramView, recipes: SizeRecipes, rejections: Mapping[torch.fx.Node, Rejection]) -> Placement:
    """The placement in which every call that is not rejected runs in an engine."""
    kinds: dict[torch.fx.Node, Kind] = {}
    copied: set[torch.fx.Node] = set()
    owners = dict(view.owners)
    for node in view.operators():
        cheap = view.roles[node] is Role.CHEAP and node not in rejections
        # A view of something that runs once is no cheaper than any other call.
        if cheap and not any(other in owners and is_tensor(other) for other in node.all_input_nodes):
            copied.add(node)
            continue
        kinds[node] = Kind.TORCH if node in rejections else Kind.ENGINE
        owners[node] = node
    return Placement(view, recipes, kinds, frozenset(copied), owners, rejections, WorkEstimator(view.program.dims, view.sizes))


@dataclass(frozen=True, slots=True)
class CallGraph:
    """The dependencies of a placement: ``graph`` has one vertex per call and free ones for numbers and copies."""

    graph: Dependencies
    vertices: Mapping[torch.fx.Node, int]

    def calls(self) -> Iterator[tuple[torch.fx.Node, int]]:
        """Calls with their vertices, in graph order."""
        return iter(self.vertices.items())

    def recoloured(self, placement: Placement) -> CallGraph | None:
        """The graph of a placement of the same calls in other kinds, or ``None`` where its edges depend on kinds: with free vertices."""
        if len(self.graph.kinds) > len(self.vertices):
            return None
        kinds = [placement.kinds[node] for node in self.vertices]
        return CallGraph(Dependencies(kinds, self.graph.predecessors), self.vertices)


def depend(placement: Placement) -> CallGraph:
    """The dependencies of every call: data, numbers that an engine reads from shapes, and the order of effects."""
    return _Builder(placement).build()


class _Builder:
    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._graph = Dependencies()
        self._vertices: dict[torch.fx.Node, int] = {}
        self._free: dict[tuple[torch.fx.Node, Kind], int] = {}
        self._barrier: list[int] = []
        self._since_barrier: list[int] = []
        self._last_effect: list[int] = []

    def build(self) -> CallGraph:
        owners, tensors, effects = self._placement.owners, self._placement.view.sizes, self._placement.view.effects
        for node, kind in self._placement.kinds.items():
            before: list[int] = []
            for other in node.all_input_nodes:
                if other not in tensors or other in self._placement.copied:
                    before.extend(self._read(other, kind))
                elif other in owners:
                    before.append(self._vertices[owners[other]])
            effect = effects.get(node)
            before += self._barrier
            if effect is not None:
                before += self._last_effect
            if effect is Effect.WRITES:
                before += self._since_barrier
            vertex = self._vertices[node] = self._graph.add(kind, before)
            self._since_barrier.append(vertex)
            if effect is not None:
                self._last_effect = [vertex]
            if effect is Effect.WRITES:
                self._barrier, self._since_barrier = [vertex], []
        return CallGraph(self._graph, self._vertices)

    def _read(self, node: torch.fx.Node, kind: Kind) -> tuple[int, ...]:
        """The vertex that a reader of ``kind`` depends on for a value; makes those of numbers and copies, deepest first."""
        waiting = [(node, kind)]
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
        vertex = self._vertex((node, kind))
        return () if vertex is None else (vertex,)

    def _vertex(self, reading: tuple[torch.fx.Node, Kind]) -> int | None:
        node, kind = reading
        if node in self._placement.owners and not (kind is Kind.ENGINE and is_number(node)):
            return self._vertices[self._placement.owners[node]]
        return self._free.get(reading)

    def _inputs(self, node: torch.fx.Node, kind: Kind) -> list[tuple[torch.fx.Node, Kind]]:
        if kind is Kind.TORCH or not is_number(node):
            known = self._placement.outside_source(node) is not None
            return [] if known else [(other, kind) for other in node.all_input_nodes]
        # An engine's number also waits for whatever PyTorch would take it from: then moving the reader to PyTorch keeps the order valid.
        inputs = [(node, Kind.TORCH)]
        match self._placement.recipes.recipes[node]:
            case DimOf(tensor, _):
                inputs.append((tensor, kind))
            case Recomputed(original):
                inputs.extend((other, kind) for other in original.all_input_nodes)
            case Literal():
                pass
        return inputs
