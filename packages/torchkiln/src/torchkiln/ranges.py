"""Ranges of a graph's symbols: from its constraints, with a documented default where nothing bounds a dimension above."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_leaves
from torch.utils._sympy.value_ranges import ValueRanges

from torchkiln_core import DimRange, InternalError
from torchkiln_core.size import linear

DEFAULT_GROWTH = 8
"""An unbounded dimension may grow to this multiple of its example size (at least ``DEFAULT_FLOOR``)."""
DEFAULT_FLOOR = 64
_UNBOUNDED = 2**31


def ranges_of(
    module: torch.fx.GraphModule, constraints: Mapping[Any, Any] | None = None, sizes: Mapping[str, int] | None = None
) -> Mapping[str, DimRange]:
    """Range of each symbol in the placeholders' shapes; ``opt`` is the example size.

    A size that depends on data has a range where the program bounds it, by what it is made of or by ``torch._check``.

    Args:
        module: The graph.
        constraints: The ranges that the user declared, by symbol. Tracing itself assumes sizes of at least 2, and so the shape
            environment's own ranges are narrower.
        sizes: Sizes that the default of an unbounded dimension must hold, by symbol.
    """
    ranges: dict[str, DimRange] = {}
    for node in module.graph.nodes:
        if node.op == "placeholder":
            for size in _symbolic_sizes(node.meta.get("val")):
                for symbol in size.node.expr.free_symbols:
                    if symbol.name not in ranges:
                        ranges[symbol.name] = _range(symbol, size.node.shape_env, constraints or {}, (sizes or {}).get(symbol.name, 1))
        elif node.meta.get("unbacked_bindings"):
            ranges |= _bounded(node, constraints or {})
    return ranges


def _bounded(node: torch.fx.Node, constraints: Mapping[Any, Any]) -> dict[str, DimRange]:
    """The ranges of the symbols that a call brings in and the program bounds; plans are tuned for their middle."""
    ranges = {}
    for symbol in node.meta["unbacked_bindings"]:
        bounds = constraints.get(symbol)
        if bounds is None:
            env = _environment(size for item in tree_leaves(node.meta["val"]) for size in _symbolic_sizes(item))
            bounds = None if env is None else env.var_to_range.get(symbol)
        if bounds is not None and bounds.upper.is_Integer and bounds.upper < _UNBOUNDED and symbol.is_integer:
            low, high = max(0, int(bounds.lower)) if bounds.lower.is_Integer else 0, int(bounds.upper)
            ranges[symbol.name] = DimRange(symbol.name, low, (low + high) // 2, high)
    return ranges


def shape_env_of(module: torch.fx.GraphModule) -> ShapeEnv | None:
    """The shape environment of a graph, if an input of it has a symbolic size."""
    values = (node.meta.get("val") for node in module.graph.find_nodes(op="placeholder"))
    return _environment(size for value in values for size in _symbolic_sizes(value))


def example_sizes(environment: ShapeEnv) -> Mapping[Any, Any]:
    """The sizes that a program was captured with, by symbol; older versions of torch have another name for them."""
    sizes: Mapping[Any, Any] = environment.backed_var_to_val if hasattr(environment, "backed_var_to_val") else environment.var_to_val
    return sizes


def _environment(sizes: Iterable[torch.SymInt]) -> ShapeEnv | None:
    return next((size.node.shape_env for size in sizes), None)


def _symbolic_sizes(value: Any) -> list[torch.SymInt]:
    sizes: Sequence[Any] = value.shape if isinstance(value, torch.Tensor) else (value,)
    return [size for size in sizes if isinstance(size, torch.SymInt)]


def _range(symbol: Any, shape_env: ShapeEnv | None, constraints: Mapping[Any, Any], held: int) -> DimRange:
    if shape_env is None:
        raise InternalError(f"symbol {symbol}: no shape environment")
    # Of a symbol in derived dimensions alone, torch itself has what tracing assumed.
    bounds = constraints.get(symbol) or shape_env.var_to_range[symbol]
    if (derived := _derived(symbol, constraints)) is not None:
        bounds = ValueRanges(min(bounds.lower, derived.lower), min(bounds.upper, derived.upper))
    hint = _hint(symbol, shape_env)
    low = int(bounds.lower) if bounds.lower.is_Integer else 0
    low = max(0, low)
    high = int(bounds.upper) if bounds.upper.is_Integer else None
    # torch writes "no bound" as the largest int64 as well as as infinity.
    unbounded = high is None or high >= _UNBOUNDED
    if high is None or unbounded:
        high = max(DEFAULT_GROWTH * hint, DEFAULT_FLOOR, low, 1 << (held - 1).bit_length())
    return DimRange(symbol.name, low, min(max(hint, low), high), high, assumed=unbounded)


def _derived(symbol: Any, constraints: Mapping[Any, Any]) -> ValueRanges[Any] | None:
    """The range of a symbol that the user declared through ``a * symbol + b`` only, such as ``2 * Dim("n", min=1, max=8)``."""
    for size, bounds in constraints.items():
        line = linear(size)
        if line is not None and line[2] == symbol.name and line[0] > 0 and bounds.lower.is_Integer:
            factor, offset, _ = line
            low = -((offset - int(bounds.lower)) // factor)
            high = (int(bounds.upper) - offset) // factor if bounds.upper.is_Integer else bounds.upper
            return ValueRanges(low, high)
    return None


def _hint(symbol: Any, shape_env: ShapeEnv) -> int:
    values = example_sizes(shape_env)
    return int(values[symbol]) if symbol in values else 1
