"""Operators that join or divide tensors, or move their elements."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchkiln_converters.arrival import Result
from torchkiln_converters.converter import converter
from torchkiln_converters.ops.indexing import bounded, pick
from torchkiln_converters.support import MAX_RANK, Equals, Support
from torchkiln_converters.writing.shapes import axis_of, product, reshape, static_sizes, unsqueeze, window
from torchkiln_converters.writing.values import cast
from torchkiln_core import Network, Size, Value
from torchkiln_core.layers import Concatenation, Slice, SliceMode

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
    """``roll(Tensor self, SymInt[1] shifts, int[1] dims=[])``: a dimension read cyclically."""
    if not dims:
        flat = reshape(net, self, (product(self.shape),))
        return reshape(net, _rolled(net, flat, 0, shifts[0]), self.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        self = _rolled(net, self, axis_of(dim, self.rank), shift)
    return self


def _rolled(net: Network, value: Value, axis: int, shift: int) -> Value:
    """Reads a dimension from ``-shift`` on, around its end."""
    size = value.shape[axis] if value.rank else 1
    if shift == 0 or size == 0 or value.rank == 0:
        return value
    first = -shift % size if isinstance(size, int) else -shift
    starts = tuple(first if at == axis else 0 for at in range(value.rank))
    sizes = static_sizes(value.shape)
    layer = Slice(starts, sizes, (1,) * value.rank, SliceMode.WRAP)
    return net.add(layer, value) if sizes is not None else net.add(layer, value, None, net.size_tensor(value.shape))


@converter(aten.slice_scatter.default, Support(ranks=range(1, 9), rules=(Equals("step", 1),), ignores=("end",)))
def slice_scatter(net: Network, self: Value, src: Value, dim: int, start: Size | None) -> Value:
    """``slice_scatter(Tensor self, Tensor src, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1)``."""
    axis = axis_of(dim, self.rank)
    first = bounded(net, 0 if start is None else start, self.shape[axis])
    return _replaced(net, self, cast(net, src, self.dtype), axis, first)


@converter(aten.select_scatter.default, Support(ranks=range(1, 9)))
def select_scatter(net: Network, self: Value, src: Value, dim: int, index: Size) -> Value:
    """``select_scatter(Tensor self, Tensor src, int dim, SymInt index)``."""
    axis = axis_of(dim, self.rank)
    first = bounded(net, index, self.shape[axis])
    return _replaced(net, self, unsqueeze(net, cast(net, src, self.dtype), axis), axis, first)


def _replaced(net: Network, value: Value, part: Value, axis: int, start: Size) -> Value:
    """``value`` with ``part`` in place of its elements from ``start`` on."""
    after = start + part.shape[axis]
    rest = value.shape[axis] - after
    if start == 0 and rest == 0:
        return part
    starts = [after if at == axis else 0 for at in range(value.rank)]
    head_shape = [start if at == axis else size for at, size in enumerate(value.shape)]
    tail_shape = [rest if at == axis else size for at, size in enumerate(value.shape)]
    ones = (1,) * value.rank
    head = () if start == 0 else (window(net, value, (0,) * value.rank, head_shape, ones),)
    tail = () if rest == 0 else (window(net, value, starts, tail_shape, ones),)
    return net.add(Concatenation(axis), *head, part, *tail)
