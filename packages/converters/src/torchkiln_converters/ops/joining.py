"""Operators that join or divide tensors, or move their elements."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchkiln_core import Network, Size, Value
from torchkiln_core.layers import Concatenation, Slice, SliceMode
from torchkiln_converters.arrival import Result, Scalar
from torchkiln_converters.converter import converter
from torchkiln_converters.ops.indexing import pick
from torchkiln_converters.support import MAX_RANK, NETWORK_DTYPES, Requires, Support
from torchkiln_converters.writing.shapes import axis_of, unsqueeze, window
from torchkiln_converters.writing.values import cast, number

aten = torch.ops.aten


@converter(aten.cat.default)
def cat(net: Network, tensors: Sequence[Value], dim: int, result: Result) -> Value:
    """``cat(Tensor[] tensors, int dim=0)``; PyTorch lets empty tensors of rank 1 stand among others, which add nothing."""
    kept = [value for value in tensors if value.rank == len(result.shape)]
    parts = [cast(net, value, result.dtype) for value in kept]
    return parts[0] if len(parts) == 1 else net.add(Concatenation(axis_of(dim, len(result.shape))), *parts)


@converter(aten.stack.default, Support(ranks=range(MAX_RANK)))
def stack(net: Network, tensors: Sequence[Value], dim: int, result: Result) -> Value:
    """``stack(Tensor[] tensors, int dim=0)``."""
    axis = axis_of(dim, len(result.shape))
    parts = [unsqueeze(net, cast(net, value, result.dtype), axis) for value in tensors]
    return parts[0] if len(parts) == 1 else net.add(Concatenation(axis), *parts)


def _parts(net: Network, value: Value, axis: int, sizes: Sequence[Size]) -> tuple[Value, ...]:
    """Consecutive parts of one dimension."""
    parts: list[Value] = []
    start: Size = 0
    for size in sizes:
        starts = [start if at == axis else 0 for at in range(value.rank)]
        shape = [size if at == axis else have for at, have in enumerate(value.shape)]
        parts.append(window(net, value, starts, shape, (1,) * value.rank))
        start = start + size
    return tuple(parts)


@converter(aten.split_with_sizes.default)
def split_with_sizes(net: Network, self: Value, split_sizes: tuple[Size, ...], dim: int) -> tuple[Value, ...]:
    """``split_with_sizes(Tensor self, SymInt[] split_sizes, int dim=0)``."""
    return _parts(net, self, axis_of(dim, self.rank), split_sizes)


@converter(aten.split.Tensor, Support(ignores=("split_size",)))
def split(net: Network, self: Value, dim: int, results: tuple[Result, ...]) -> tuple[Value, ...]:
    """``split.Tensor(Tensor self, SymInt split_size, int dim=0)``."""
    axis = axis_of(dim, self.rank)
    return _parts(net, self, axis, [result.shape[axis] for result in results])


@converter(aten.unbind.int)
def unbind(net: Network, self: Value, dim: int, results: tuple[Result, ...]) -> tuple[Value, ...]:
    """``unbind.int(Tensor self, int dim=0)``."""
    return tuple(pick(net, self, axis_of(dim, self.rank), at) for at in range(len(results)))


@converter(aten.flip.default)
def flip(net: Network, self: Value, dims: tuple[int, ...]) -> Value:
    """``flip(Tensor self, int[] dims)``."""
    axes = {axis_of(dim, self.rank) for dim in dims}
    if self.rank == 0 or not axes:
        return self
    starts = [size - 1 if at in axes else 0 for at, size in enumerate(self.shape)]
    return window(net, self, starts, self.shape, [-1 if at in axes else 1 for at in range(self.rank)])


@converter(aten.roll.default)
def roll(net: Network, self: Value, shifts: tuple[int, ...], dims: tuple[int, ...]) -> Value:
    """``roll(Tensor self, SymInt[1] shifts, int[1] dims=[])``: the end of a dimension joined before its start."""
    if not dims:
        flat = reshape(net, self, (_numel(self),))
        return reshape(net, _rolled(net, flat, 0, shifts[0]), self.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        self = _rolled(net, self, axis_of(dim, self.rank), shift)
    return self


def _rolled(net: Network, value: Value, axis: int, shift: int) -> Value:
    """Reads cyclically from ``-shift`` on."""
    if shift == 0 or value.rank == 0:
        return value
    size = value.shape[axis]
    first = -shift % size
    starts = [first if at == axis else 0 for at in range(value.rank)]
    sizes = _static(value.shape)
    if isinstance(first, int):
        layer = Slice(tuple(starts), sizes, (1,) * value.rank, SliceMode.WRAP)
        return net.add(layer, value, None, None if sizes is not None else net.size_tensor(value.shape))
    layer = Slice(None, None, (1,) * value.rank, SliceMode.WRAP)
    return net.add(layer, value, net.size_tensor(tuple(starts)), net.size_tensor(value.shape))
