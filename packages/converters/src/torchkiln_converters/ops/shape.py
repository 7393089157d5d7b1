"""Operators that change how a tensor is seen."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchkiln_converters.arrival import Result
from torchkiln_converters.converter import converter
from torchkiln_converters.support import NETWORK_DTYPES, Support, fake
from torchkiln_converters.writing.shapes import axis_of, expand, permute, reshape, static_sizes, transpose
from torchkiln_core import Network, OpCall, Requires, Size, Value
from torchkiln_core.layers import Slice
from torchkiln_core.size import sizes_of

aten = torch.ops.aten
_MOVED = NETWORK_DTYPES | {torch.int8}
"""Dtypes of values that layers give another order or shape."""


@converter((aten.view.default, aten._unsafe_view.default), Support(dtypes=_MOVED, results=_MOVED, ignores=("size",)))
def view(net: Network, self: Value, result: Result) -> Value:
    """``view(Tensor self, SymInt[] size)``."""
    return reshape(net, self, result.shape)


@converter((aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims), Support(dtypes=_MOVED, results=_MOVED, ignores=("dim",)))
def unsqueeze(net: Network, self: Value, result: Result) -> Value:
    """``unsqueeze(Tensor self, int dim)``, ``squeeze.dim(Tensor self, int dim)``, ``squeeze.dims(Tensor self, int[] dim)``."""
    return reshape(net, self, result.shape)


@converter(aten.squeeze.default, Support(dtypes=_MOVED, results=_MOVED))
def squeeze(net: Network, self: Value, result: Result) -> Value:
    """``squeeze(Tensor self)``."""
    return reshape(net, self, result.shape)


@converter(aten.permute.default, Support(dtypes=_MOVED, results=_MOVED))
def permute_(net: Network, self: Value, dims: tuple[int, ...]) -> Value:
    """``permute(Tensor self, int[] dims)``."""
    return permute(net, self, [axis_of(dim, self.rank) for dim in dims])


@converter(aten.transpose.int, Support(dtypes=_MOVED, results=_MOVED))
def transpose_(net: Network, self: Value, dim0: int, dim1: int) -> Value:
    """``transpose.int(Tensor self, int dim0, int dim1)``."""
    return self if self.rank == 0 else transpose(net, self, dim0, dim1)


@converter(aten.t.default, Support(dtypes=_MOVED, results=_MOVED))
def t(net: Network, self: Value) -> Value:
    """``t(Tensor self)``, of rank 2 or less."""
    return self if self.rank < 2 else transpose(net, self, 0, 1)


@converter(aten.expand.default, Support(ignores=("size",)))
def expand_(net: Network, self: Value, result: Result) -> Value:
    """``expand(Tensor self, SymInt[] size, *, bool implicit=False)``."""
    return expand(net, self, result.shape)


@converter(aten.repeat.default)
def repeat(net: Network, self: Value, repeats: tuple[Size, ...], result: Result) -> Value:
    """``repeat(Tensor self, SymInt[] repeats)``: a dimension of size 1 before each one is expanded and merged."""
    lead = (1,) * (len(repeats) - self.rank)
    inner: Sequence[Size] = (*lead, *self.shape)
    paired = [part for size in inner for part in (1, size)]
    wanted = [part for count, size in zip(repeats, inner, strict=True) for part in (count, size)]
    if len(paired) > 8:
        return _repeat_by_dim(net, reshape(net, self, inner), repeats)
    return reshape(net, expand(net, reshape(net, self, paired), wanted), result.shape)


def _repeat_by_dim(net: Network, value: Value, repeats: tuple[Size, ...]) -> Value:
    """One dimension after the other, so that no tensor has twice the rank."""
    for axis, count in enumerate(repeats):
        if count == 1:
            continue
        flat: Size = 1
        for size in value.shape[axis:]:
            flat = flat * size
        head: Size = 1
        for size in value.shape[:axis]:
            head = head * size
        repeated = expand(net, reshape(net, value, (head, 1, flat)), (head, count, flat))
        value = reshape(net, repeated, (*value.shape[:axis], count * value.shape[axis], *value.shape[axis + 1 :]))
    return value


def _keeps_places(call: OpCall) -> bool:
    """Size and strides are those of the tensor; a dimension of size 1 may have any stride."""
    tensor = fake(call, "self")
    size, stride = tuple(call.outputs[0].shape), tuple(call.outputs[0].stride())
    same_size = sizes_of(tuple(tensor.shape)) == sizes_of(size)
    pairs = zip(sizes_of(size), sizes_of(tuple(tensor.stride())), sizes_of(stride), strict=True) if same_size else ()
    return same_size and not call.arguments["storage_offset"] and all(extent == 1 or old == new for extent, old, new in pairs)


@converter(
    aten.as_strided.default,
    Support(rules=(Requires("the size and strides that the tensor has", _keeps_places),), ignores=("size", "stride", "storage_offset")),
)
def as_strided(net: Network, self: Value) -> Value:
    """``as_strided(Tensor self, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None)`` that moves nothing."""
    return self


def _static_when_moved(call: OpCall) -> bool:
    tensor = fake(call, "self")
    sides = (tensor.shape[call.arguments["dim1"]], tensor.shape[call.arguments["dim2"]])
    return call.arguments["offset"] == 0 or all(isinstance(side, int) for side in sides)


@converter(
    aten.diagonal.default,
    Support(ranks=range(2, 9), rules=(Requires("static dimensions when an offset is given", _static_when_moved, "static"),)),
)
def diagonal(net: Network, self: Value, offset: int, dim1: int, dim2: int, result: Result) -> Value:
    """``diagonal(Tensor self, int offset=0, int dim1=0, int dim2=1)``: every ``columns + 1``-th element of the flattened matrices."""
    first, second = axis_of(dim1, self.rank), axis_of(dim2, self.rank)
    order = (*(axis for axis in range(self.rank) if axis not in (first, second)), first, second)
    *lead, rows, columns = (self.shape[axis] for axis in order)
    flat = reshape(net, permute(net, self, order), (*lead, rows * columns))
    begin = 0 if result.shape[-1] == 0 else offset if offset >= 0 else -offset * columns
    sizes, steps = static_sizes(result.shape), (*(1,) * len(lead), columns + 1)
    strides = static_sizes(steps)
    operands = (None if sizes is not None else net.size_tensor(result.shape), None if strides is not None else net.size_tensor(steps))
    starts = static_sizes((*(0,) * len(lead), begin))
    return net.add(Slice(starts, sizes, strides), flat, None, *operands)


@converter(aten.pixel_shuffle.default)
def pixel_shuffle(net: Network, self: Value, upscale_factor: int, result: Result) -> Value:
    """``pixel_shuffle(Tensor self, int upscale_factor)``: ``[*, C * r * r, H, W] -> [*, C, H * r, W * r]``."""
    *lead, _, height, width = self.shape
    channels, factor, rank = result.shape[-3], upscale_factor, len(lead)
    parts = reshape(net, self, (*lead, channels, factor, factor, height, width))
    order = (*range(rank), rank, rank + 3, rank + 1, rank + 4, rank + 2)
    return reshape(net, permute(net, parts, order), result.shape)
