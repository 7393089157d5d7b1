"""Pooling."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch

from torchkiln_converters.arrival import Result
from torchkiln_converters.converter import converter
from torchkiln_converters.ops.padding import pad_with
from torchkiln_converters.ops.reduction import summed
from torchkiln_converters.support import FLOATS, Support, fake, only_output
from torchkiln_converters.writing.shapes import reshape, spread
from torchkiln_converters.writing.values import cast, mul, number
from torchkiln_core import Network, OpCall, Requires, Size, Value
from torchkiln_core.layers import Pooling, PoolingKind, ReduceOp

aten = torch.ops.aten


def _ones(call: OpCall) -> bool:
    dilation: Any = call.arguments["dilation"]
    return all(step == 1 for step in (dilation if isinstance(dilation, (list, tuple)) else (dilation,)))


def _static_when_ceiled(call: OpCall) -> bool:
    return not call.arguments["ceil_mode"] or all(isinstance(dim, int) for dim in fake(call, "self").shape[-3:])


def _pooled(net: Network, layer: Pooling, value: Value, result: Result) -> Value:
    """Applies the layer, to ``[1, C, *]`` when there is no batch dimension."""
    if value.rank == len(layer.window) + 2:
        return net.add(layer, value)
    return reshape(net, net.add(layer, reshape(net, value, (1, *value.shape))), result.shape)


_Windows: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Kernel, stride and padding."""
_UNDILATED = Requires("a dilation of 1", _ones)
_CEILED = Requires("static spatial dimensions when ceil_mode is set", _static_when_ceiled, "static")


def _post_padding(value: Value, windows: _Windows, result: Result) -> tuple[int, ...]:
    """Rounding sizes up is padding the end until the last windows are full."""
    kernel, stride, padding = windows
    spatial = len(kernel)
    return tuple(
        pad if not (isinstance(size, int) and isinstance(out, int)) else max(pad, (out - 1) * step + window - size - pad)
        for pad, step, window, size, out in zip(padding, stride, kernel, value.shape[-spatial:], result.shape[-spatial:], strict=True)
    )


def _max_pool(net: Network, value: Value, windows: _Windows, result: Result) -> Value:
    kernel, stride, padding = windows
    return _pooled(net, Pooling(PoolingKind.MAX, kernel, stride, padding, _post_padding(value, windows, result)), value, result)


def _average(net: Network, value: Value, windows: _Windows, count_padding: bool, result: Result) -> Value:
    """What rounding up adds at the end never counts; padding that does is then made of zeros before the layer."""
    kernel, stride, padding = windows
    post = _post_padding(value, windows, result)
    if post == padding:
        return _pooled(net, Pooling(PoolingKind.AVERAGE, kernel, stride, padding, padding, count_padding), value, result)
    if not (count_padding and any(padding)):
        return _pooled(net, Pooling(PoolingKind.AVERAGE, kernel, stride, padding, post), value, result)
    both = tuple((pad, pad) for pad in padding)
    zeros, rest = (0,) * len(padding), tuple(after - pad for after, pad in zip(post, padding, strict=True))
    return _pooled(net, Pooling(PoolingKind.AVERAGE, kernel, stride, zeros, rest), pad_with(net, value, both, 0), result)


@converter(
    aten.max_pool2d_with_indices.default,
    Support(dtypes=FLOATS, ranks=range(3, 5), rules=(only_output(0), _UNDILATED, _CEILED), ignores=("dilation", "ceil_mode")),
)
def max_pool2d(
    net: Network, self: Value, kernel_size: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...], result: Result
) -> tuple[Value | None, ...]:
    """``max_pool2d_with_indices(Tensor self, int[2] kernel_size, ...)`` without its indices.

    A window's NaN is ignored, where PyTorch returns it: the one known difference, which a second pooling would cost to remove.
    """
    kernel = spread(kernel_size, 2)
    return _max_pool(net, self, (kernel, spread(stride, 2) or kernel, spread(padding, 2)), result), None


@converter(
    aten.max_pool3d_with_indices.default,
    Support(dtypes=FLOATS, ranks=range(4, 6), rules=(only_output(0), _UNDILATED, _CEILED), ignores=("dilation", "ceil_mode")),
)
def max_pool3d(
    net: Network, self: Value, kernel_size: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...], result: Result
) -> tuple[Value | None, ...]:
    """``max_pool3d_with_indices(Tensor self, int[3] kernel_size, ...)`` when nobody reads the indices; NaN is ignored, as in 2-d."""
    kernel = spread(kernel_size, 3)
    return _max_pool(net, self, (kernel, spread(stride, 3) or kernel, spread(padding, 3)), result), None


def _sum_over(net: Network, value: Value, windows: _Windows, divisor: int, result: Result) -> Value:
    """Sums of windows over one number, whatever part of a window lies in the padding: averages that count it, times the window's size.

    In float32, so that a half result is rounded once. Source: ATen/native/cpu/AvgPoolKernel.cpp.
    """
    kernel, stride, padding = windows
    layer = Pooling(PoolingKind.AVERAGE, kernel, stride, padding, _post_padding(value, windows, result), count_padding=True)
    average = _pooled(net, layer, cast(net, value, torch.float32), result)
    return cast(net, mul(net, average, number(net, math.prod(kernel) / divisor, torch.float32)), result.dtype)


@converter(
    aten.avg_pool2d.default,
    Support(dtypes=FLOATS, ranks=range(3, 5), rules=(_CEILED,), ignores=("ceil_mode",)),
)
def avg_pool2d(
    net: Network,
    self: Value,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    count_include_pad: bool,
    divisor_override: int | None,
    result: Result,
) -> Value:
    """``avg_pool2d(Tensor self, int[2] kernel_size, ...)``."""
    kernel = spread(kernel_size, 2)
    windows = (kernel, spread(stride, 2) or kernel, spread(padding, 2))
    if divisor_override is not None:
        return _sum_over(net, self, windows, divisor_override, result)
    return _average(net, self, windows, count_include_pad, result)


@converter(
    aten.avg_pool3d.default,
    Support(dtypes=FLOATS, ranks=range(4, 6), rules=(_CEILED,), ignores=("ceil_mode",)),
)
def avg_pool3d(
    net: Network,
    self: Value,
    kernel_size: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    count_include_pad: bool,
    divisor_override: int | None,
    result: Result,
) -> Value:
    """``avg_pool3d(Tensor self, int[3] kernel_size, ...)``."""
    kernel = spread(kernel_size, 3)
    windows = (kernel, spread(stride, 3) or kernel, spread(padding, 3))
    if divisor_override is not None:
        return _sum_over(net, self, windows, divisor_override, result)
    return _average(net, self, windows, count_include_pad, result)


def _divides(call: OpCall) -> bool:
    """Every output size divides its input size, so that all windows are equal; an output of size 1 is a mean over any size."""
    wanted = call.arguments["output_size"]
    if all(item == 1 for item in wanted):
        return True
    sizes = fake(call, "self").shape[-len(wanted) :]
    known = all(isinstance(item, int) for item in (*sizes, *wanted))
    return known and all(out > 0 and size % out == 0 for size, out in zip(sizes, wanted, strict=True))


_EQUAL_WINDOWS = Requires("static sizes that output_size divides", _divides, "static")


def _adaptive(net: Network, value: Value, output_size: tuple[int, ...], result: Result) -> Value:
    spatial = len(output_size)
    sizes: tuple[Size, ...] = value.shape[-spatial:]
    if all(size == 1 for size in output_size):
        return summed(net, ReduceOp.AVG, value, tuple(range(value.rank - spatial, value.rank)), True, result)
    kernel = tuple(size // out for size, out in zip(sizes, output_size, strict=True) if isinstance(size, int))
    zeros = (0,) * spatial
    return _pooled(net, Pooling(PoolingKind.AVERAGE, kernel, kernel, zeros, zeros), value, result)


@converter(
    (aten._adaptive_avg_pool2d.default, aten.adaptive_avg_pool2d.default),
    Support(dtypes=FLOATS, ranks=range(3, 5), rules=(_EQUAL_WINDOWS,)),
)
def adaptive_avg_pool2d(net: Network, self: Value, output_size: tuple[int, ...], result: Result) -> Value:
    """``adaptive_avg_pool2d(Tensor self, SymInt[2] output_size)``. Kept whole: on channels-last tensors its composite form sets strides."""
    return _adaptive(net, self, output_size, result)


@converter(
    (aten._adaptive_avg_pool3d.default, aten.adaptive_avg_pool3d.default),
    Support(dtypes=FLOATS, ranks=range(4, 6), rules=(_EQUAL_WINDOWS,)),
)
def adaptive_avg_pool3d(net: Network, self: Value, output_size: tuple[int, ...], result: Result) -> Value:
    """``adaptive_avg_pool3d(Tensor self, SymInt[3] output_size)``."""
    return _adaptive(net, self, output_size, result)
