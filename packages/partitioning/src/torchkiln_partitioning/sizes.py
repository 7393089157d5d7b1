"""Where an engine segment takes a symbolic integer from: engines have tensor inputs only, so it is recomputed from a shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from torchkiln_core.size import Size, size_of
from torchkiln_partitioning.shapes import unranged_symbols
from torchkiln_partitioning.view import SIZE_READERS, ProgramView, Role, aten, dims_of, is_tensor


@dataclass(frozen=True, slots=True)
class Literal:
    """A number that compilation has fixed."""

    value: int | float | bool


@dataclass(frozen=True, slots=True)
class DimOf:
    """Dimension ``dim`` of a tensor: an input of the program or the result of a call."""

    tensor: torch.fx.Node
    dim: int


@dataclass(frozen=True, slots=True)
class Recomputed:
    """The same operator applied to numbers that can be had in turn."""

    node: torch.fx.Node


Recipe = Literal | DimOf | Recomputed


@dataclass(frozen=True, slots=True)
class SizeRecipes:
    """How engine segments obtain numbers.

    Attributes:
        recipes: Per node whose value is a number; a number without a recipe cannot be had inside an engine.
        known_after: Position of the latest tensor that the number is read from, ``-1`` for inputs of the program and literals.
    """

    recipes: Mapping[torch.fx.Node, Recipe]
    known_after: Mapping[torch.fx.Node, int]

    def usable_by(self, number: torch.fx.Node, position: int) -> bool:
        """Whether the node at ``position`` of the graph can use the number inside an engine."""
        return number in self.recipes and self.known_after[number] < position


def expression_of(node: torch.fx.Node) -> Size | None:
    """The expression of an integer node, ``None`` for floats, truth values and everything else."""
    value = node.meta.get("val")
    return size_of(value) if isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool) else None


def sizes_held(node: torch.fx.Node) -> tuple[Size, ...]:
    """The sizes that a value consists of: those of a tensor's shape, or the integer itself."""
    size = expression_of(node)
    return dims_of(node) if is_tensor(node) else () if size is None else (size,)


def find_recipes(view: ProgramView) -> SizeRecipes:
    """A recipe for every number of the program that can be read from shapes.

    The dimensions of the program's own inputs come first, since they cost no dependency; then the tensor that the program itself reads
    the size of; then the first tensor of the graph that carries the expression. A tensor of unknown extent is no source for a number of
    known range: no engine could take it in.
    """
    inputs: dict[Size, DimOf] = {}
    made: dict[Size, DimOf] = {}
    for node in view.nodes:
        sizes = view.sizes.get(node, ())
        if all(isinstance(size, int) for size in sizes):
            continue
        role = view.roles[node]
        if role in (Role.INPUT, Role.CALL, Role.PART) and not _unranged(node, view):
            for dim, size in enumerate(sizes):
                if not isinstance(size, int):
                    (inputs if role is Role.INPUT else made).setdefault(size, DimOf(node, dim))
    found = _Recipes(view, inputs, made)
    for node in view.nodes:
        if node not in view.sizes and is_number(node):
            found.add(node)
    return SizeRecipes(found.recipes, found.known_after)


def is_number(node: torch.fx.Node) -> bool:
    """Whether a node's value is a Python or symbolic number."""
    return isinstance(node.meta.get("val"), (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool))


class _Recipes:
    def __init__(self, view: ProgramView, inputs: Mapping[Size, DimOf], made: Mapping[Size, DimOf]) -> None:
        self.recipes: dict[torch.fx.Node, Recipe] = {}
        self.known_after: dict[torch.fx.Node, int] = {}
        self._view = view
        self._inputs = inputs
        self._made = made

    def add(self, node: torch.fx.Node) -> None:
        recipe = self._recipe(node)
        if recipe is None:
            return
        match recipe:
            case Literal():
                after = -1
            case DimOf(tensor, _):
                after = -1 if self._view.roles[tensor] is Role.INPUT else self._view.index[tensor]
            case Recomputed():
                after = max((self.known_after[other] for other in node.all_input_nodes), default=-1)
        self.recipes[node], self.known_after[node] = recipe, after

    def _recipe(self, node: torch.fx.Node) -> Recipe | None:
        literal = _literal(node.meta["val"])
        if literal is not None:
            return literal
        size = expression_of(node)
        if size is not None and size in self._inputs:
            return self._inputs[size]
        if self._view.roles[node] is Role.SIZE:
            own = self._own_shape(node)
            if own is not None:
                return own
            if node.target not in SIZE_READERS and all(other in self.recipes for other in node.all_input_nodes):
                return Recomputed(node)
        return self._made.get(size) if size is not None else None

    def _own_shape(self, node: torch.fx.Node) -> DimOf | None:
        """The dimension that the program itself reads, if an engine could take the tensor in."""
        if node.target is not aten.sym_size.int:
            return None
        tensor, dim = node.args[0], node.args[1]
        if not isinstance(tensor, torch.fx.Node) or not isinstance(dim, int) or tensor not in self._view.owners:
            return None
        return DimOf(tensor, dim) if _unranged(node, self._view) or not _unranged(tensor, self._view) else None


def _unranged(node: torch.fx.Node, view: ProgramView) -> tuple[str, ...]:
    return unranged_symbols(sizes_held(node), view.program.dims)


def _literal(value: Any) -> Literal | None:
    if isinstance(value, (bool, int, float)):
        return Literal(value)
    if isinstance(value, torch.SymInt):
        size = size_of(value)
        return Literal(size) if isinstance(size, int) else None
    return None
