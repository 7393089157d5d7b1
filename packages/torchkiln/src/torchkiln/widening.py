"""The ``dynamic_shapes`` of a program once more, with ranges that hold the sizes of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import Dim
from torch.utils import _pytree as pytree

from torchkiln.checks import ArgumentCheck
from torchkiln.convention import CallingConvention
from torchkiln_core import DimRange, Size
from torchkiln_core.size import bound_symbols, linear


def sizes_in(checks: Sequence[ArgumentCheck], flat: Sequence[Any]) -> dict[str, int]:
    """The size of each symbol in a call, where a dimension determines it."""
    sizes: list[Size] = []
    values: list[int] = []
    for check, value in zip(checks, flat, strict=True):
        if isinstance(value, torch.Tensor) and value.dim() == len(check.shape):
            sizes += check.shape
            values += value.shape
    return bound_symbols(sizes, values)


def widened(bounds: DimRange, size: int) -> DimRange:
    """A range that holds ``size`` too: its top at least the next power of two, so that few ranges serve many sizes."""
    high = bounds.max if size <= bounds.max else 1 << (size - 1).bit_length()
    return DimRange(bounds.symbol, min(bounds.min, size), size, high)


def widened_shapes(convention: CallingConvention, flat: Sequence[Any]) -> Any:
    """``dynamic_shapes`` for ``torch.export`` that describe the program and hold the sizes of a call.

    A dimension of size 0 or 1 is static, since export fixes those; so is one that was static before.
    """
    sizes = {symbol: size for symbol, size in sizes_in(convention.checks, flat).items() if size > 1}
    bounds = {symbol: bounds for check in convention.checks for symbol, bounds in check.dims.items() if symbol in sizes}
    ranges = {symbol: widened(bounds[symbol], sizes[symbol]) for symbol in bounds}
    dims = {symbol: Dim(symbol, min=item.min, max=item.max) for symbol, item in ranges.items()}
    specs = [_dynamic_dims(check.shape, dims) or None for check in convention.checks]
    args, kwargs = pytree.tree_unflatten(specs, convention.in_spec)
    if not any(specs):
        return None
    if not kwargs:
        return args
    names = list(convention.parameter_names or ())
    if len(args) > len(names):
        # Arguments behind a star have no names to go by.
        return None
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _dynamic_dims(shape: Sequence[Size], dims: Mapping[str, Any]) -> dict[int, Any]:
    return {index: made for index, size in enumerate(shape) if (made := _dim(size, dims)) is not None}


def _dim(size: Size, dims: Mapping[str, Any]) -> Any:
    if (line := linear(size)) is None or line[2] not in dims:
        return None
    factor, offset, symbol = line
    dim = dims[symbol]
    dim = dim if factor == 1 else factor * dim
    return dim if offset == 0 else dim + offset
