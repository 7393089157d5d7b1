"""Pooling."""

from __future__ import annotations

from typing import Any

import torch

from torchkiln_converters.arrival import Result
from torchkiln_converters.converter import converter
from torchkiln_converters.support import FLOATS, Equals, Requires, Support, fake, only_output
from torchkiln_converters.writing.shapes import reshape
from torchkiln_core import Network, OpCall, Size, Value
from torchkiln_core.layers import Pooling, PoolingKind

aten = torch.ops.aten


def _ones(call: OpCall) -> bool:
    dilation: Any = call.arguments["dilation"]
    return all(step == 1 for step in (dilation if isinstance(dilation, (list, tuple)) else (dilation,)))


def _static_when_ceiled(call: OpCall) -> bool:
    return not call.arguments["ceil_mode"] or all(isinstance(dim, int) for dim in fake(call, "self").shape[-3:])


def _spread(values: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return values * rank if len(values) == 1 else values


def _pooled(net: Network, layer: Pooling, value: Value, result: Result) -> Value:
    """Applies the layer, to ``[1, C, *]`` when there is no batch dimension."""
    if value.rank == len(layer.window) + 2:
        return net.add(layer, value)
    return reshape(net, net.add(layer, reshape(net, value, (1, *value.shape))), result.shape)


_UNDILATED = Requires("a dilation of 1", _ones)
_CEILED = Requires("static spatial dimensions when ceil_mode is set", _static_when_ceiled, "static")


def _max_pool(net: Network, value: Value, windows: tuple[tuple[int, ...], ...], result: Result) -> Value:
    """``windows`` holds kernel, stride and padding. Rounding sizes up is padding the end until they are full."""
    kernel, stride, padding = windows
    spatial = len(kernel)
    post = tuple(
        pad if not (isinstance(size, int) and isinstance(out, int)) else max(pad, (out - 1) * step + window - size - pad)
        for pad, step, window, size, out in zip(padding, stride, kernel, value.shape[-spatial:], result.shape[-spatial:], strict=True)
    )
    return _pooled(net, Pooling(PoolingKind.MAX, kernel, stride, padding, post), value, result)


@converter(
    aten.max_pool2d_with_indices.default,
    Support(dtypes=FLOATS, ranks=range(3, 5), rules=(only_output(0), _UNDILATED, _CEILED), ignores=("dilation", "ceil_mode")),
)
def max_pool2d(
    net: Network, self: Value, kernel_size: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...], result: Result
) -> tuple[Value | None, ...]:
    """``max_pool2d_with_indices(Tensor self, int[2] kernel_size, ...)`` without its indices. PyTorch gives NaN for a window with NaN."""
    kernel = _spread(kernel_size, 2)
    return _max_pool(net, self, (kernel, _spread(stride, 2) or kernel, _spread(padding, 2)), result), None


@converter(
    aten.max_pool3d_with_indices.default,
    Support(dtypes=FLOATS, ranks=range(4, 6), rules=(only_output(0), _UNDILATED, _CEILED), ignores=("dilation", "ceil_mode")),
)
def max_pool3d(
    net: Network, self: Value, kernel_size: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...], result: Result
) -> tuple[Value | None, ...]:
    """``max_pool3d_with_indices(Tensor self, int[3] kernel_size, ...)`` when nobody reads the indices."""
    kernel = _spread(kernel_size, 3)
    return _max_pool(net, self, (kernel, _spread(stride, 3) or kernel, _spread(padding, 3)), result), None


@converter(
    aten.avg_pool2d.default,
    Support(dtypes=FLOATS, ranks=range(3, 5), rules=(Equals("ceil_mode", False), Equals("divisor_override", None))),
)
def avg_pool2d(
    net: Network,
    self: Value,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    count_include_pad: bool,
    result: Result,
) -> Value:
    """``avg_pool2d(Tensor self, int[2] kernel_size, ...)``."""
    kernel, pad = _spread(kernel_size, 2), _spread(padding, 2)
    layer = Pooling(PoolingKind.AVERAGE, kernel, _spread(stride, 2) or kernel, pad, pad, count_include_pad)
    return _pooled(net, layer, self, result)


@converter(
    aten.avg_pool3d.default,
    Support(dtypes=FLOATS, ranks=range(4, 6), rules=(Equals("ceil_mode", False), Equals("divisor_override", None))),
)
def avg_pool3d(
    net: Network,
    self: Value,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    count_include_pad: bool,
    result: Result,
) -> Value:
    """``avg_pool3d(Tensor self, int[3] kernel_size, ...)``."""
    kernel, pad = _spread(kernel_size, 3), _spread(padding, 3)
    layer = Pooling(PoolingKind.AVERAGE, kernel, _spread(stride, 3) or kernel, pad, pad, count_include_pad)
    return _pooled(net, layer, self, result)


def _divides(call: OpCall) -> bool:
    """Every output size divides its input size, so that all windows are equal."""
    wanted = call.arguments["output_size"]
    sizes = fake(call, "self").shape[-len(wanted) :]
    known = all(isinstance(item, int) for item in (*sizes, *wanted))
    return known and all(out > 0 and size % out == 0 for size, out in zip(sizes, wanted, strict=True))


_EQUAL_WINDOWS = Requires("static sizes that output_size divides", _divides, "static")


def _adaptive(net: Network, value: Value, output_size: tuple[int, ...], result: Result) -> Value:
    spatial = len(output_size)
    sizes: tuple[Size, ...] = value.shape[-spatial:]
    kernel = tuple(size // out for size, out in zip(sizes, output_size, strict=True) if isinstance(size, int))
    zeros = (0,) * spatial
    return _pooled(net, Pooling(PoolingKind.AVERAGE, kernel, kernel, zeros, zeros), value, result)


@converter(aten._adaptive_avg_pool2d.default, Support(dtypes=FLOATS, ranks=range(3, 5), rules=(_EQUAL_WINDOWS,)))
def adaptive_avg_pool2d(net: Network, self: Value, output_size: tuple[int, ...], result: Result) -> Value:
    """``_adaptive_avg_pool2d(Tensor self, SymInt[2] output_size)``."""
    return _adaptive(net, self, output_size, result)


@converter(aten._adaptive_avg_pool3d.default, Support(dtypes=FLOATS, ranks=range(4, 6), rules=(_EQUAL_WINDOWS,)))
def adaptive_avg_pool3d(net: Network, self: Value, output_size: tuple[int, ...], result: Result) -> Value:
    """``_adaptive_avg_pool3d(Tensor self, SymInt[3] output_size)``."""
    return _adaptive(net, self, output_size, result)
