"""Resizing of images by filters as wide as what they merge, an axis at a time: weighted sums over windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchkiln_core.call import OpCall
from torchkiln_core.rejection import Requires
from torchkiln_lowering.decompositions.numbers import float32, number_like
from torchkiln_lowering.decompositions.precision import FLOATING, as_dtype, widened
from torchkiln_lowering.decompositions.table import Decomposition
from torchkiln_lowering.decompositions.windows import Axis, along, arange, column, windowed
from torchkiln_lowering.metadata import known_and_not_empty

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class _Filter:
    """A filter ``weigh`` of ``[*]`` distances in pixels, which is 0 from ``support`` on."""

    support: int
    weigh: Callable[[torch.Tensor], Any]


@dataclass(frozen=True, slots=True)
class _Resized:
    """An axis and the filter over it; all in float32, as eager computes windows and weights. Source: ATen/native/cpu/UpSampleKernel.cpp.

    Attributes:
        size: Pixels before.
        out: Pixels after.
        scale: Pixels before per pixel after.
        filter: Stretched by the scale where that is more than 1.
    """

    size: int
    out: int
    scale: float
    filter: _Filter

    @property
    def support(self) -> float:
        return float32(self.filter.support * max(self.scale, 1.0))

    @property
    def keeps(self) -> bool:
        """Whether every pixel stays what it is, as eager leaves axes that keep their size; weighting others with 0 would spread NaN."""
        return self.size == self.out and (self.scale == 1 or self.size == 1)

    @property
    def is_right(self) -> bool:
        """Whether all windows hold pixels; eager's kernels do not agree what a scale means to an axis that keeps its size."""
        return self.keeps or (self.size != self.out and min(self.lengths()) > 0)

    def lengths(self) -> list[int]:
        """The number of pixels that each pixel reads."""
        starts = (max(self._edge(place, -self.support), 0) for place in range(self.out))
        return [min(self._edge(place, self.support), self.size) - start for place, start in enumerate(starts)]

    def _edge(self, place: int, reach: float) -> int:
        return int(float32(float32(self.scale * (place + 0.5)) + reach) + 0.5)

    def _centers(self, device: torch.device) -> Any:
        places = as_dtype(column(arange(self.out, device)), torch.float32)
        return aten.mul.Scalar(aten.add.Scalar(places, 0.5), self.scale)

    def window(self, device: torch.device) -> tuple[Any, Any]:
        """Positions of the pixels that each pixel reads, int64 ``[O, K]``, some behind the window's end, and the ends ``[O, 1]``."""
        centers = self._centers(device)
        low = aten.clamp_min.default(_rounded(aten.sub.Scalar(centers, self.support)), 0)
        high = aten.clamp_max.default(_rounded(aten.add.Scalar(centers, self.support)), self.size)
        return aten.add.Tensor(low, arange(max(self.lengths()), device)), high

    def positions(self, device: torch.device) -> Any:
        reach, high = self.window(device)
        return aten.minimum.default(reach, aten.sub.Scalar(high, 1))

    def weights(self, inside: torch.Tensor, reach: torch.Tensor) -> Any:
        """Weights ``[O, K]`` that sum up to 1, of the pixels inside the windows."""
        distances = aten.sub.Tensor(as_dtype(reach, torch.float32), self._centers(reach.device))
        scaled = aten.mul.Scalar(aten.add.Scalar(distances, 0.5), float32(1 / max(self.scale, 1.0)))
        weights = aten.where.self(inside, self.filter.weigh(scaled), number_like(0, scaled))
        return aten.div.Tensor(weights, aten.sum.dim_IntList(weights, [1], True))


def _rounded(x: torch.Tensor) -> Any:
    """``[*]`` to int64, halves up, where adding a half in float32 would round before."""
    whole = aten.floor.default(x)
    up = aten.ge.Scalar(aten.sub.Tensor(x, whole), 0.5)
    return aten.add.Tensor(as_dtype(whole, torch.int64), as_dtype(up, torch.int64))


def _triangle(x: torch.Tensor) -> Any:
    return aten.clamp_min.default(aten.add.Scalar(aten.neg.default(aten.abs.default(x)), 1), 0)


def _cubic(x: torch.Tensor) -> Any:
    """The cubic convolution with ``a = -0.5``: of distances to 1, and of those to 2."""
    x = aten.abs.default(x)
    near = aten.sub.Scalar(aten.mul.Scalar(x, 1.5), 2.5)
    near = aten.add.Scalar(aten.mul.Tensor(aten.mul.Tensor(near, x), x), 1)
    far = aten.add.Scalar(aten.mul.Tensor(aten.sub.Scalar(x, 5), x), 8)
    far = aten.mul.Scalar(aten.sub.Scalar(aten.mul.Tensor(far, x), 4), -0.5)
    far = aten.where.self(aten.lt.Scalar(x, 2), far, number_like(0, x))
    return aten.where.self(aten.lt.Scalar(x, 1), near, far)


_LOBES = 3


def _lanczos(x: torch.Tensor) -> Any:
    """``sinc(x) sinc(x / 3)`` of distances to 3."""
    x = aten.abs.default(x)
    waves = aten.mul.Tensor(_sinc(x), _sinc(aten.mul.Scalar(x, 1 / _LOBES)))
    return aten.where.self(aten.lt.Scalar(x, _LOBES), waves, number_like(0, x))


def _sinc(x: torch.Tensor) -> Any:
    angle = aten.mul.Scalar(x, math.pi)
    center = aten.eq.Scalar(angle, 0)
    one = number_like(1, x)
    return aten.where.self(center, one, aten.div.Tensor(aten.sin.default(angle), aten.where.self(center, one, angle)))


_FILTERS = {"_upsample_bilinear2d_aa": _Filter(1, _triangle), "_upsample_bicubic2d_aa": _Filter(2, _cubic)}
if hasattr(aten, "_upsample_lanczos2d_aa"):
    _FILTERS["_upsample_lanczos2d_aa"] = _Filter(_LOBES, _lanczos)


def _axis(size: int, out: int, scale: float | None, filter_: _Filter, *, align_corners: bool) -> _Resized:
    """Source: ATen/native/UpSample.h, ``area_pixel_compute_scale``."""
    if align_corners:
        return _Resized(size, out, float32((size - 1) / (out - 1)) if out > 1 else 0.0, filter_)
    return _Resized(size, out, float32(size / out if scale is None or scale <= 0 else 1 / scale), filter_)


def _resizes(filter_: _Filter) -> Callable[..., Any]:
    def resize(
        self: torch.Tensor, output_size: Sequence[int], align_corners: bool, scales_h: float | None = None, scales_w: float | None = None
    ) -> Any:
        """``[N, C, H, W] -> [N, C, H', W']``, in float32; columns are merged before rows."""
        x = widened(self)
        for dim, scale in ((3, scales_w), (2, scales_h)):
            axis = _axis(x.shape[dim], int(output_size[dim - 2]), scale, filter_, align_corners=align_corners)
            x = x if axis.keeps else _merged(x, dim, axis)
        return as_dtype(x, self.dtype)

    return resize


def _merged(x: torch.Tensor, dim: int, axis: _Resized) -> Any:
    """Reads no pixel outside the windows: no product with a matrix, in which an infinite pixel would make its whole row NaN."""
    wide = windowed(x, dim, Axis(axis.size, axis.out, max(axis.lengths()), axis.positions))
    reach, high = axis.window(x.device)
    inside = aten.lt.Tensor(reach, high)
    weights = as_dtype(axis.weights(inside, reach), x.dtype)
    read = aten.where.self(along(inside, dim, wide.dim()), wide, number_like(0, wide))
    return aten.sum.dim_IntList(aten.mul.Tensor(read, along(weights, dim, wide.dim())), [dim + 1])


def _sizes(call: OpCall) -> tuple[Any, Any]:
    return call.arguments["self"].meta["val"].shape[2:], call.arguments["output_size"]


def _is_static(call: OpCall) -> bool:
    return all(map(known_and_not_empty, _sizes(call)))


def _limits(filter_: _Filter) -> tuple[Requires, ...]:
    def axes(call: OpCall) -> list[_Resized]:
        scales = (call.arguments["scales_h"], call.arguments["scales_w"])
        each = zip(*_sizes(call), scales, strict=True)
        return [_axis(*item, filter_, align_corners=call.arguments["align_corners"]) for item in each]

    def stays_inside(call: OpCall) -> bool:
        return all(axis.is_right for axis in axes(call))

    def is_wide(call: OpCall) -> bool:
        """Eager's kernel for the CPU writes its first row into all rows of an image one pixel wide: no filter gives its numbers."""
        rows, columns = axes(call)
        return columns.out > 1 or rows.out == 1 or rows.keeps

    return (
        FLOATING,
        Requires("known sizes, none of them 0", _is_static),
        Requires("scales that lead to pixels of the image, and that are 1 where a size is kept", stays_inside),
        Requires("an output of more than one column, or of one row, or of as many rows as the input", is_wide),
    )


ANTIALIAS: dict[Callable[..., Any], Decomposition] = {
    getattr(aten, name).default: Decomposition(_resizes(filter_), limits=_limits(filter_)) for name, filter_ in _FILTERS.items()
}
