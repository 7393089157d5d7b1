"""Shape facts of a segment: the range of every dimension that crosses its border inwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import sympy
import torch
import torch.fx
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from torchkiln_core.errors import PartitionError
from torchkiln_core.partition import Segment
from torchkiln_core.size import Size, evaluate, format_size, sizes_of, symbols_of
from torchkiln_core.spec import Dim, DimRange, TensorSpec


def input_specs(segment: Segment, dims: Mapping[str, DimRange]) -> tuple[TensorSpec, ...]:
    """The specs of a segment's tensor inputs, in order; numbers that a PyTorch segment takes are left out.

    A dimension that is an expression has the bounds of the expression over the ranges of its symbols, so the range holds every size
    that can occur and possibly more.

    Args:
        segment: A segment of a partition.
        dims: Range of each free symbol, as in ``Program.dims``.

    Raises:
        PartitionError: A symbol has no range.
    """
    wanted = set(segment.inputs)
    specs: list[TensorSpec] = []
    for node in segment.module.graph.find_nodes(op="placeholder"):
        value = node.meta["val"]
        if node.name in wanted and isinstance(value, torch.Tensor):
            shape = tuple(dim_of(size, dims, node.name) for size in sizes_of(value.shape))
            specs.append(TensorSpec(node.name, value.dtype, shape))
    return tuple(specs)


def unranged_symbols(sizes: tuple[Size, ...], dims: Mapping[str, DimRange]) -> tuple[str, ...]:
    """The symbols of sizes that have no known range, in order."""
    return tuple(dict.fromkeys(name for size in sizes for name in symbols_of(size) if name not in dims))


def dim_of(size: Size, dims: Mapping[str, DimRange], name: str) -> Dim:
    """A size of the value ``name`` with its range.

    Raises:
        PartitionError: A symbol has no range.
    """
    if isinstance(size, int):
        return size
    missing = unranged_symbols((size,), dims)
    if missing:
        known = ", ".join(dims) or "none"
        raise PartitionError(
            f"input {name}: expected ranges of the symbols in size {size}, got none of {', '.join(missing)} (known: {known})"
        )
    symbols = sorted(cast("set[sympy.Symbol]", size.free_symbols), key=str)
    ranges = {symbol: ValueRanges(dims[symbol.name].min, dims[symbol.name].max) for symbol in symbols}
    bounds = bound_sympy(size, ranges)
    typical = evaluate(size, {symbol.name: dims[symbol.name].opt for symbol in symbols})
    return DimRange(format_size(size), max(int(bounds.lower), 0), typical, int(bounds.upper))
