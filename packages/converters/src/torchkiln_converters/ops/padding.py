"""Padding and triangles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from torchkiln_converters.arrival import Result, Scalar
from torchkiln_converters.converter import Converter, converter
from torchkiln_converters.support import FLOATS, NUMBERS, Support
from torchkiln_converters.writing.positions import positions
from torchkiln_converters.writing.shapes import reshape, static_sizes
from torchkiln_converters.writing.values import cast, less, number, select
from torchkiln_core import Network, Value
from torchkiln_core.layers import Slice, SliceMode

aten = torch.ops.aten


def _padded(net: Network, value: Value, pad: Sequence[int], mode: SliceMode, result: Result, fill: Value | None) -> Value:
    """A slice that begins before the value; ``pad`` goes from the last dimension to the first, two numbers each."""
    start = [0] * value.rank
    for at, before in enumerate(pad[::2]):
        start[value.rank - 1 - at] = -before
    sizes = static_sizes(result.shape)
    operands = [None, None if sizes is not None else net.size_tensor(result.shape), None, fill]
    while operands and operands[-1] is None:
        operands.pop()
    return net.add(Slice(tuple(start), sizes, (1,) * value.rank, mode), value, *operands)


def pad_with(net: Network, value: Value, pad: Sequence[tuple[int, int]], scalar: Scalar) -> Value:
    """Pads the last dimensions by ``(before, after)`` each with a number."""
    lead = value.rank - len(pad)
    start = (0,) * lead + tuple(-before for before, _ in pad)
    shape = value.shape[:lead] + tuple(size + before + after for size, (before, after) in zip(value.shape[lead:], pad, strict=True))
    sizes = static_sizes(shape)
    layer = Slice(start, sizes, (1,) * value.rank, SliceMode.FILL)
    return net.add(layer, value, None, None if sizes is not None else net.size_tensor(shape), None, number(net, scalar, value.dtype))


@converter(aten.constant_pad_nd.default)
def constant_pad_nd(net: Network, self: Value, pad: tuple[int, ...], value: Scalar, result: Result) -> Value:
    """``constant_pad_nd(Tensor self, SymInt[] pad, Scalar value=0)``; negative padding cuts. Conditions are padded as integers."""
    if not any(pad):
        return self
    if self.dtype is torch.bool:
        padded = _padded(net, cast(net, self, torch.int32), pad, SliceMode.FILL, result, number(net, int(bool(value)), torch.int32))
        return cast(net, padded, torch.bool)
    return _padded(net, self, pad, SliceMode.FILL, result, number(net, value, self.dtype))


def _edge_padding(target: OpOverload[..., Any], mode: SliceMode) -> Converter[...]:
    def function(net: Network, self: Value, padding: tuple[int, ...], result: Result) -> Value:
        return _padded(net, self, padding, mode, result, None)

    function.__name__ = f"pad_{mode.name.lower()}"
    return converter(target, Support(dtypes=FLOATS))(function)


EDGES = (
    _edge_padding(aten.reflection_pad1d.default, SliceMode.REFLECT),
    _edge_padding(aten.reflection_pad2d.default, SliceMode.REFLECT),
    _edge_padding(aten.reflection_pad3d.default, SliceMode.REFLECT),
    _edge_padding(aten.replication_pad1d.default, SliceMode.CLAMP),
    _edge_padding(aten.replication_pad2d.default, SliceMode.CLAMP),
    _edge_padding(aten.replication_pad3d.default, SliceMode.CLAMP),
)
"""Padding that repeats what stands at the edges."""


def _beyond(net: Network, value: Value, diagonal: int) -> Value:
    """Bool ``[rows, columns]``: whether an element lies right of a diagonal."""
    rows, columns = value.shape[-2:]
    limit = reshape(net, positions(net, rows, torch.int32, start=diagonal), (rows, 1))
    return less(net, limit, reshape(net, positions(net, columns, torch.int32), (1, columns)))


@converter(aten.tril.default, Support(dtypes=NUMBERS, ranks=range(2, 9)))
def tril(net: Network, self: Value, diagonal: int) -> Value:
    """``tril(Tensor self, SymInt diagonal=0)``."""
    return select(net, _beyond(net, self, diagonal), number(net, 0, self.dtype), self)


@converter(aten.triu.default, Support(dtypes=NUMBERS, ranks=range(2, 9)))
def triu(net: Network, self: Value, diagonal: int) -> Value:
    """``triu(Tensor self, SymInt diagonal=0)``."""
    return select(net, _beyond(net, self, diagonal - 1), self, number(net, 0, self.dtype))
