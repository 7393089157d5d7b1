"""Pooling over windows that differ in size, that are dilated, or whose maxima are wanted by position."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torchkiln_core.call import OpCall
from torchkiln_lowering.decompositions.precision import as_dtype, floating, widened
from torchkiln_lowering.decompositions.table import Decomposition
from torchkiln_lowering.decompositions.windows import Axis, along, arange, column, floor_div, largest, windowed

aten = torch.ops.aten


def _starts(size: int, out: int, device: torch.device) -> Any:
    """First positions of adaptive windows, int64 ``[O, 1]``."""
    return column(floor_div(aten.mul.Scalar(arange(out, device), size), out))


def _ends(size: int, out: int, device: torch.device) -> Any:
    """One past the last positions of adaptive windows, int64 ``[O, 1]``."""
    last = aten.add.Scalar(aten.mul.Scalar(arange(out, device), size), size + out - 1)
    return column(floor_div(last, out))


def _adaptive(size: Any, out: int) -> Axis:
    """Windows from ``floor(i * size / out)`` to ``ceil((i + 1) * size / out)``. Source: ATen/native/AdaptivePooling.h."""
    if out == 1 or size % out == 0:
        return Axis(size, out, size // out)
    taps = max(-(-(place + 1) * size // out) - place * size // out for place in range(out))

    def table(device: torch.device) -> Any:
        reach = aten.add.Tensor(_starts(size, out, device), arange(taps, device))
        return aten.minimum.default(reach, aten.sub.Scalar(_ends(size, out, device), 1))

    return Axis(size, out, taps, table)


def _axes(x: torch.Tensor, output_size: Sequence[int]) -> list[Axis]:
    wanted = [int(out) for out in output_size]
    return [_adaptive(size, out) for size, out in zip(x.shape[-len(wanted) :], wanted, strict=True)]


def adaptive_max_pool(self: torch.Tensor, output_size: Sequence[int]) -> tuple[Any, Any]:
    """``adaptive_max_pool{1,2,3}d``: ``[N, C, *] -> [N, C, *]`` and the places in the plane, or both without ``N``.

    Source: ATen/native/cpu/AdaptiveMaxPoolKernel.cpp.
    """
    return largest(self, _axes(self, output_size))


def adaptive_avg_pool(self: torch.Tensor, output_size: Sequence[int]) -> Any:
    """``adaptive_avg_pool{1,2,3}d``: ``[N, C, *] -> [N, C, *]``, or both without ``N``: means of means, as windows are products.

    Source: ATen/native/cpu/AdaptiveAvgPoolKernel.cpp.
    """
    axes, x = _axes(self, output_size), widened(self)
    for number in reversed(range(len(axes))):
        x = _means(x, x.dim() - len(axes) + number, axes[number])
    return as_dtype(x, self.dtype)


def _means(x: torch.Tensor, dim: int, axis: Axis) -> Any:
    wide = windowed(x, dim, axis)
    if axis.table is None:
        return aten.mean.dim(wide, [dim + 1])
    starts, ends = (edge(axis.size, axis.out, x.device) for edge in (_starts, _ends))
    # What a short window repeats is left out, not weighted with 0: it may be infinite.
    inside = along(aten.lt.Tensor(aten.add.Tensor(starts, arange(axis.taps, x.device)), ends), dim, wide.dim())
    nothing = aten.full.default([], 0, dtype=x.dtype, device=x.device)
    length = as_dtype(aten.sub.Tensor(ends, starts), x.dtype)
    total = aten.sum.dim_IntList(aten.where.self(inside, wide, nothing), [dim + 1], True)
    return aten.squeeze.dim(aten.div.Tensor(total, along(length, dim, wide.dim())), dim + 1)


def _adapts(call: OpCall) -> bool:
    """Axes of known sizes, or of one window: that is the whole axis, which must not be empty."""
    wanted: Any = call.arguments["output_size"]
    value = call.arguments["self"].meta["val"]
    if not floating(call) or not all(isinstance(out, int) and out > 0 for out in wanted):
        return False
    sizes = value.shape[-len(wanted) :]
    return all(statically_known_true(size > 0) and (isinstance(size, int) or out == 1) for size, out in zip(sizes, wanted, strict=True))


def max_pool(  # noqa: PLR0913 -- ATen's signature
    self: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Any, Any]:
    """``max_pool{2,3}d_with_indices``: ``[N, C, *] -> [N, C, *]`` and the places in the plane, or both without ``N``.

    Source: ATen/native/cpu/MaxPoolKernel.cpp.
    """
    return largest(self, [_strided(*each) for each in _settings(self, kernel_size, stride, padding, dilation, ceil_mode)])


_Setting = tuple[int, int, int, int, int, int]
"""Size, windows, kernel, stride, padding and dilation of an axis."""


def _settings(  # noqa: PLR0913 -- ATen's signature
    x: torch.Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], ceil_mode: bool
) -> Iterator[_Setting]:
    spatial = 2 if x.dim() == 3 or len(kernel) == 2 else 3
    given = (list(item) * (spatial if len(item) == 1 else 1) for item in (kernel, stride or kernel, padding, dilation))
    for size, window, step, pad, spread in zip(x.shape[-spatial:], *given, strict=True):
        free = size + 2 * pad - spread * (window - 1) - 1
        out = (-(-free // step) if ceil_mode else free // step) + 1
        # No window begins in the padding behind the last element.
        out -= ceil_mode and (out - 1) * step >= size + pad
        yield size, out, window, step, pad, spread


def _strided(size: int, out: int, kernel: int, stride: int, padding: int, dilation: int) -> Axis:  # noqa: PLR0913, PLR0917 -- a setting
    def table(device: torch.device) -> Any:
        starts = column(aten.add.Scalar(aten.mul.Scalar(arange(out, device), stride), -padding))
        # Elements of padding give way to the first or the last of the window.
        first = aten.neg.default(floor_div(aten.clamp_max.default(starts, 0), dilation))
        last = aten.clamp_max.default(floor_div(aten.add.Scalar(aten.neg.default(starts), size - 1), dilation), kernel - 1)
        taps = aten.minimum.default(aten.maximum.default(arange(kernel, device), first), last)
        return aten.add.Tensor(aten.mul.Scalar(taps, dilation), starts)

    return Axis(size, out, kernel, table)


def _pools(call: OpCall) -> bool:
    """Static planes, and an element in every window."""
    value, *settings = call.arguments.values()
    x = value.meta["val"]
    spatial = 2 if call.target is aten.max_pool2d_with_indices.default else 3
    if x.dtype.is_complex or not all(isinstance(size, int) and size > 0 for size in x.shape[-spatial:]):
        return False
    return all(_has_elements(*each) for each in _settings(x, *settings))


def _has_elements(size: int, out: int, kernel: int, stride: int, padding: int, dilation: int) -> bool:  # noqa: PLR0913, PLR0917 -- a setting
    starts = (place * stride - padding for place in range(out))
    return out > 0 and all(max(0, -(start // dilation)) <= min(kernel - 1, (size - 1 - start) // dilation) for start in starts)


POOLS: dict[Callable[..., Any], Decomposition] = {
    **dict.fromkeys(
        (aten.adaptive_max_pool1d.default, aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default),
        Decomposition(adaptive_max_pool, _adapts),
    ),
    **dict.fromkeys(
        (
            aten.adaptive_avg_pool1d.default,
            *(aten.adaptive_avg_pool2d.default, aten._adaptive_avg_pool2d.default),
            *(aten.adaptive_avg_pool3d.default, aten._adaptive_avg_pool3d.default),
        ),
        Decomposition(adaptive_avg_pool, _adapts),
    ),
    aten.max_pool2d_with_indices.default: Decomposition(max_pool, _pools),
    aten.max_pool3d_with_indices.default: Decomposition(max_pool, _pools),
}
