"""Pooling over windows that differ in size, that are dilated, or whose maxima are wanted by position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torchkiln_core.call import OpCall
from torchkiln_core.rejection import Requires
from torchkiln_lowering.decompositions.numbers import number_like
from torchkiln_lowering.decompositions.precision import FLOATING, as_dtype, widened
from torchkiln_lowering.decompositions.table import Decomposition
from torchkiln_lowering.decompositions.windows import Axis, along, arange, column, floor_div, largest, windowed
from torchkiln_lowering.metadata import known_and_not_empty

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
    nothing = number_like(0, x)
    length = as_dtype(aten.sub.Tensor(ends, starts), x.dtype)
    total = aten.sum.dim_IntList(aten.where.self(inside, wide, nothing), [dim + 1], True)
    return aten.squeeze.dim(aten.div.Tensor(total, along(length, dim, wide.dim())), dim + 1)


def _knows_windows(call: OpCall) -> bool:
    return known_and_not_empty(call.arguments["output_size"])


def _knows_axes(call: OpCall) -> bool:
    """One window is the whole axis, which must not be empty."""
    wanted: Any = call.arguments["output_size"]
    sizes = call.arguments["self"].meta["val"].shape[-len(wanted) :]
    return all(statically_known_true(size > 0) and (isinstance(size, int) or out == 1) for size, out in zip(sizes, wanted, strict=True))


_ADAPTS = (
    FLOATING,
    Requires("a known output_size without 0", _knows_windows),
    Requires("known sizes of the axes, but for those with one window, none of them 0", _knows_axes),
)


@dataclass(frozen=True, slots=True)
class _Strided:
    """Windows of ``kernel`` elements, ``dilation`` apart, that begin ``stride`` apart from ``padding`` before the first element on."""

    size: int
    kernel: int
    stride: int
    padding: int
    dilation: int
    ceil_mode: bool

    @property
    def out(self) -> int:
        """The number of windows. Source: ATen/native/Pool.h, ``pooling_output_shape``."""
        free = self.size + 2 * self.padding - self.dilation * (self.kernel - 1) - 1
        if not self.ceil_mode:
            return free // self.stride + 1
        out = -(-free // self.stride) + 1
        # No window begins in the padding behind the last element.
        return out - 1 if (out - 1) * self.stride >= self.size + self.padding else out

    def has_elements(self) -> bool:
        """Whether no window lies in the padding alone."""
        starts = (place * self.stride - self.padding for place in range(self.out))
        ends = ((start, min(self.kernel - 1, (self.size - 1 - start) // self.dilation)) for start in starts)
        return self.out > 0 and all(max(0, -(start // self.dilation)) <= last for start, last in ends)

    def table(self, device: torch.device) -> Any:
        """Positions ``[O, K]``: elements of padding give way to the first or the last of the window."""
        starts = column(aten.add.Scalar(aten.mul.Scalar(arange(self.out, device), self.stride), -self.padding))
        first = aten.neg.default(floor_div(aten.clamp_max.default(starts, 0), self.dilation))
        last = floor_div(aten.add.Scalar(aten.neg.default(starts), self.size - 1), self.dilation)
        taps = aten.minimum.default(aten.maximum.default(arange(self.kernel, device), first), last)
        return aten.add.Tensor(aten.mul.Scalar(taps, self.dilation), starts)


def _strided(spatial: int, x: torch.Tensor, settings: Sequence[Sequence[int]], ceil_mode: bool) -> list[_Strided]:
    """The axes of a plane; ``settings`` are kernel, stride, padding and dilation."""
    kernel, stride, *rest = settings
    given = (list(item) * (spatial if len(item) == 1 else 1) for item in (kernel, stride or kernel, *rest))
    rows = zip(x.shape[-spatial:], *given, strict=True)
    return [_Strided(size, window, step, pad, spread, ceil_mode) for size, window, step, pad, spread in rows]


def _max_pool(spatial: int) -> Decomposition:
    def max_pool(
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
        axes = _strided(spatial, self, (kernel_size, stride, padding, dilation), ceil_mode)
        return largest(self, [Axis(axis.size, axis.out, axis.kernel, axis.table) for axis in axes])

    def is_static(call: OpCall) -> bool:
        return known_and_not_empty(call.arguments["self"].meta["val"].shape[-spatial:])

    def has_elements(call: OpCall) -> bool:
        value, *settings, ceil_mode = call.arguments.values()
        return all(axis.has_elements() for axis in _strided(spatial, value.meta["val"], settings, ceil_mode))

    static = Requires("planes of known sizes that are not empty", is_static)
    return Decomposition(max_pool, limits=(static, Requires("windows, none of which lies in the padding alone", has_elements)))


POOLS: dict[Callable[..., Any], Decomposition] = {
    **dict.fromkeys(
        (aten.adaptive_max_pool1d.default, aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default),
        Decomposition(adaptive_max_pool, limits=_ADAPTS),
    ),
    **dict.fromkeys(
        (
            aten.adaptive_avg_pool1d.default,
            *(aten.adaptive_avg_pool2d.default, aten._adaptive_avg_pool2d.default),
            *(aten.adaptive_avg_pool3d.default, aten._adaptive_avg_pool3d.default),
        ),
        Decomposition(adaptive_avg_pool, limits=_ADAPTS),
    ),
    aten.max_pool2d_with_indices.default: _max_pool(2),
    aten.max_pool3d_with_indices.default: _max_pool(3),
}
