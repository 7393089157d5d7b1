"""The sizes of a call of a captured graph, by symbol, and what they are called in the user's program."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchkiln.profiles import Names
from torchkiln_core import DimRange, InputKind, Program, ShapeOutOfProfile
from torchkiln_core.size import bound_symbols, size_of, sizes_of


class JitSizes:
    """Reads the symbols of a captured graph from its arguments.

    Args:
        program: The graph.
        names: What the user calls the dimensions that symbols stand for.
    """

    def __init__(self, program: Program, names: Names) -> None:
        placeholders = program.module.graph.find_nodes(op="placeholder")
        users = {index for index, item in enumerate(program.inputs) if item.kind is InputKind.USER}
        values = {index: node.meta.get("val") for index, node in enumerate(placeholders) if index in users}
        shapes = {index: sizes_of(value.shape) for index, value in values.items() if isinstance(value, torch.Tensor)}
        integers = {index: size_of(value) for index, value in values.items() if isinstance(value, torch.SymInt)}
        self._tensors, self._integers = tuple(shapes), tuple(integers)
        self._sizes = [*itertools.chain(*shapes.values()), *integers.values()]
        self._places = {symbol: key for key, symbol in names.items() if not isinstance(key, str)}

    def of(self, arguments: Sequence[Any]) -> dict[str, int]:
        """The value of each symbol that a dimension or an integer determines."""
        values = [size for index in self._tensors for size in arguments[index].shape]
        return bound_symbols(self._sizes, [*values, *(int(arguments[index]) for index in self._integers)])

    def refusal(self, error: ShapeOutOfProfile, arguments: Sequence[Any], dims: Mapping[str, DimRange]) -> ShapeOutOfProfile:
        """``error`` in the names of the user's program, where a size is outside of its whole range."""
        for symbol, size in self.of(arguments).items():
            bounds = dims.get(symbol)
            if bounds is not None and not bounds.min <= size <= bounds.max:
                place = self._places.get(symbol)
                what = f"size {symbol}" if place is None else f"argument {place[0]} dimension {place[1]}"
                default = ", the default for a size that nothing bounds" if bounds.assumed else ""
                return ShapeOutOfProfile(
                    f"{what}: expected {bounds.min} to {bounds.max}{default}, got {size}",
                    fix="give the range with torch._dynamo.mark_dynamic(tensor, dim, min=..., max=...)",
                )
        return error
