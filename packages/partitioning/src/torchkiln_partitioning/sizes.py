"""Where an engine segment takes a symbolic integer from: engines have tensor inputs only, so it is recomputed from a shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from torchkiln_core.size import Size, size_of
from torchkiln_partitioning.shapes import unranged_symbols
from torchkiln_partitioning.view import NOBODY, SIZE_READERS, ProgramView, Role, aten


@dataclass(frozen=True, slots=True)
class Literal:
    """A number that compilation has fixed."""

    value: int | float | bool


@dataclass(frozen=True, slots=True)
class DimOf:
    """Dimension ``dim`` of the tensor at a position: an input of the program or the result of a call."""

    tensor: int
    dim: int


@dataclass(frozen=True, slots=True)
class Recomputed:
    """The operator of the node at a position, applied to numbers that can be had in turn."""

    node: int


Recipe = Literal | DimOf | Recomputed


@dataclass(frozen=True, slots=True)
class SizeRecipes:
    """How engine segments obtain numbers.

    Attributes:
        recipes: Per node whose value is a number; a number without a recipe cannot be had inside an engine.
        known_after: Position of the latest tensor that the number is read from, ``-1`` for inputs of the program and literals.
    """

    recipes: Mapping[int, Recipe]
    known_after: Mapping[int, int]

    def usable_by(self, number: int, position: int) -> bool:
        """Whether the node at ``position`` of the graph can use the number inside an engine."""
        return number in self.recipes and self.known_after[number] < position


def expression_of(node: torch.fx.Node) -> Size | None:
    """The expression of an integer node, ``None`` for floats, truth values and everything else."""
    value = node.meta.get("val")
    return size_of(value) if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool) else None


def unknown_symbols(view: ProgramView, position: int) -> tuple[str, ...]:
    """The symbols of unknown range in the sizes of a tensor, or in an integer."""
    if position in view.varying:
        return unranged_symbols(view.sizes[position] or (), view.program.dims)
    if position not in view.numbers:
        return ()
    size = expression_of(view.nodes[position])
    return () if size is None else unranged_symbols((size,), view.program.dims)


def find_recipes(view: ProgramView) -> SizeRecipes:
    """A recipe for every number of the program that can be read from shapes.

    The dimensions of the program's own inputs come first, since they cost no dependency; then the tensor that the program itself reads
    the size of; then the first tensor of the graph that carries the expression. A tensor of unknown extent is no source for a number of
    known range: no engine could take it in.
    """
    inputs: dict[Size, DimOf] = {}
    made: dict[Size, DimOf] = {}
    for position in sorted(view.varying):
        role = view.roles[position]
        if role in (Role.INPUT, Role.CALL, Role.PART) and not unknown_symbols(view, position):
            for dim, size in enumerate(view.sizes[position] or ()):
                if not isinstance(size, int):
                    (inputs if role is Role.INPUT else made).setdefault(size, DimOf(position, dim))
    found = _Recipes(view, inputs, made)
    for position in sorted(view.numbers):
        found.add(position)
    return SizeRecipes(found.recipes, found.known_after)


class _Recipes:
    def __init__(self, view: ProgramView, inputs: Mapping[Size, DimOf], made: Mapping[Size, DimOf]) -> None:
        self.recipes: dict[int, Recipe] = {}
        self.known_after: dict[int, int] = {}
        self._view = view
        self._inputs = inputs
        self._made = made

    def add(self, position: int) -> None:
        recipe = self._recipe(position)
        if recipe is None:
            return
        match recipe:
            case Literal():
                after = -1
            case DimOf(tensor, _):
                after = -1 if self._view.roles[tensor] is Role.INPUT else tensor
            case Recomputed():
                after = max((self.known_after[other] for other in self._view.reads[position]), default=-1)
        self.recipes[position], self.known_after[position] = recipe, after

    def _recipe(self, position: int) -> Recipe | None:
        node = self._view.nodes[position]
        literal = _literal(node.meta["val"])
        if literal is not None:
            return literal
        size = expression_of(node)
        if size is not None and size in self._inputs:
            return self._inputs[size]
        if self._view.roles[position] is Role.SIZE:
            own = self._own_shape(position)
            if own is not None:
                return own
            if node.target not in SIZE_READERS and all(other in self.recipes for other in self._view.reads[position]):
                return Recomputed(position)
        return self._made.get(size) if size is not None else None

    def _own_shape(self, position: int) -> DimOf | None:
        """The dimension that the program itself reads, if an engine could take the tensor in."""
        view, node = self._view, self._view.nodes[position]
        if node.target is not aten.sym_size.int:
            return None
        tensor, dim = view.reads[position][0], node.args[1]
        if not isinstance(dim, int) or view.owners[tensor] == NOBODY:
            return None
        return DimOf(tensor, dim) if unknown_symbols(view, position) or not unknown_symbols(view, tensor) else None


def _literal(value: Any) -> Literal | None:
    if isinstance(value, (bool, int, float)):
        return Literal(value)
    if isinstance(value, torch.SymInt):
        size = size_of(value)
        return Literal(size) if isinstance(size, int) else None
    return None
