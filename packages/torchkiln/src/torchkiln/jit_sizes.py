"""The sizes of a call of a captured graph, by symbol, and what they are called in the user's program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch

from torchkiln.profiles import Names
from torchkiln_core import DimRange, InputKind, Program, ShapeOutOfProfile
from torchkiln_core.size import bind_sizes, size_of, sizes_of


class JitSizes:
    """Reads the symbols of a captured graph from its arguments.

    Args:
        program: The graph.
        names: What the user calls the dimensions that symbols stand for.
    """

    def __init__(self, program: Program, names: Names) -> None:
        placeholders = program.module.graph.find_nodes(op="placeholder")
        users = [index for index, item in enumerate(program.inputs) if item.kind is InputKind.USER]
        values = {index: node.meta.get("val") for index, node in enumerate(placeholders) if index in users}
        self._shapes = {index: sizes_of(value.shape) for index, value in values.items() if isinstance(value, torch.Tensor)}
        self._integers = {index: size_of(value) for index, value in values.items() if isinstance(value, torch.SymInt)}
        self._places = {symbol: key for key, symbol in names.items() if not isinstance(key, str)}

    def of(self, arguments: Sequence[Any]) -> dict[str, int]:
        """The value of each symbol that a dimension or an integer determines."""
        known: dict[sympy.Expr, sympy.Expr] = {}
        for index, shape in self._shapes.items():
            known |= bind_sizes(shape, arguments[index].shape)
        known |= {size: sympy.Integer(int(arguments[index])) for index, size in self._integers.items() if not isinstance(size, int)}
        return {symbol.name: int(value) for symbol, value in known.items() if isinstance(symbol, sympy.Symbol) and value.is_Integer}

    def refusal(self, error: ShapeOutOfProfile, arguments: Sequence[Any], dims: Mapping[str, DimRange]) -> ShapeOutOfProfile:
        """``error`` in the names of the user's program, where a size is outside of its whole range."""
        for symbol, size in self.of(arguments).items():
            bounds = dims.get(symbol)
            if bounds is not None and not bounds.min <= size <= bounds.max:
                place = self._places.get(symbol)
                what = f"size {symbol}" if place is None else f"argument {place[0]} dimension {place[1]}"
                default = ", the default for a size that nothing bounds" if bounds.assumed else ""
                return ShapeOutOfProfile(
                    f"{what}: expected {bounds.min} to {bounds.max}{default}, got {size}; give the range with "
                    "torch._dynamo.mark_dynamic(tensor, dim, min=..., max=...), or compile with out_of_profile='torch' or 'rebuild'"
                )
        return error
