"""Layers that read an image between its pixels."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torchkiln_core.errors import InternalError
from torchkiln_core.layers.checks import floating, is_real, same_dtype, same_rank
from torchkiln_core.layers.indexing import SliceMode
from torchkiln_core.network import Layer


class Interpolation(enum.Enum):
    """``trt.InterpolationMode``."""

    NEAREST = "NEAREST"
    LINEAR = "LINEAR"
    CUBIC = "CUBIC"


class ResizeCoordinates(enum.Enum):
    """``trt.ResizeCoordinateTransformation``: the place in the input of element ``x`` of ``count``, in an extent of ``n``.

    ``ALIGN_CORNERS``: ``x * (n - 1) / (count - 1)``, or 0 when there is one element. ``ASYMMETRIC``: ``x * n / count``. ``HALF_PIXEL``:
    ``(x + 1/2) * n / count - 1/2``. Where scales are given, ``1 / scale`` stands for ``n / count``.
    """

    ALIGN_CORNERS = "ALIGN_CORNERS"
    ASYMMETRIC = "ASYMMETRIC"
    HALF_PIXEL = "HALF_PIXEL"


class ResizeSelector(enum.Enum):
    """``trt.ResizeSelector``: the place that a dimension of one element reads: by the formula, or 0."""

    FORMULA = "FORMULA"
    UPPER = "UPPER"


class ResizeRounding(enum.Enum):
    """``trt.ResizeRoundMode``: how ``NEAREST`` rounds a place; the halves say where ties go."""

    HALF_UP = "HALF_UP"
    HALF_DOWN = "HALF_DOWN"
    FLOOR = "FLOOR"
    CEIL = "CEIL"


_DYADIC = 64
"""Scales are multiples of 1/64: products with sizes are then exact in every precision, and so are the sizes that follow."""


@dataclass(frozen=True, slots=True)
class Resize(Layer):
    """Resizes the last dimensions: up to 3, or 2 by ``CUBIC``. Source: TensorRT operator page "Resize".

    The shape comes from ``shape``, from ``scales`` (``floor(size * scale)``, for every dimension) or from a size operand. Places are
    computed in float32, and a place outside reads the nearest pixel inside. ``CUBIC`` weighs 4 pixels by Keys' kernel with the coefficient
    ``cubic_coefficient``; ``exclude_outside`` gives those outside no weight and lets the others sum to 1. Half precisions are rounded once.

    Found on an H200 and not reproduced here: pixels of weight 0 count along every dimension, so that results beside an infinity are NaN,
    and ``CEIL`` of a place that is a whole number may be one more.
    """

    mode: Interpolation
    coordinates: ResizeCoordinates
    shape: tuple[int, ...] | None = None
    scales: tuple[float, ...] | None = None
    rounding: ResizeRounding = ResizeRounding.FLOOR
    selector: ResizeSelector = ResizeSelector.FORMULA
    cubic_coefficient: float = -0.75
    exclude_outside: bool = False

    shape_operands: ClassVar[tuple[int, ...]] = (1,)

    def run(self, input: torch.Tensor, shape: Sequence[int] | None = None) -> torch.Tensor:
        """``[*] -> [*]``, floating, rank 1 or more."""
        floating("Resize", input)
        target = self._target(input, shape)
        if not is_real(input):
            return input.new_empty(tuple(target))
        resized = [dim for dim in range(input.dim()) if input.shape[dim] != target[dim] or self._scale(dim) not in (None, 1)]
        if self.mode is Interpolation.NEAREST:
            for dim in resized:
                place = self._places(dim, input.shape[dim], target[dim], input.device)
                input = input.index_select(dim, self._rounded(place).clamp(0, input.shape[dim] - 1).to(torch.int64))
            return input
        wide = input.to(torch.float32)
        for dim in resized:
            wide = self._interpolated(wide, dim, target[dim])
        return wide.to(input.dtype)

    def _target(self, input: torch.Tensor, shape: Sequence[int] | None) -> Sequence[int]:
        if sum(given is not None for given in (self.shape, self.scales, shape)) != 1:
            raise InternalError(f"Resize: expected one of shape, scales and a shape operand, got {self.shape}, {self.scales} and {shape}")
        given: Sequence[int | float] = next(item for item in (self.shape, self.scales, shape) if item is not None)
        if len(given) != input.dim() or input.dim() < 1:
            raise InternalError(f"Resize: expected a shape or scales of rank {input.dim()}, 1 or more, got {list(given)}")
        target = self._scaled(input, self.scales) if self.scales is not None else self.shape if self.shape is not None else shape or ()
        free = 2 if self.mode is Interpolation.CUBIC else 3
        for dim, (before, after) in enumerate(zip(input.shape, target, strict=True)):
            if dim < input.dim() - free and statically_known_true(before != after):
                raise InternalError(f"Resize {self.mode.value}: expected dimension {dim} to keep its size {before}, got {after}")
            if statically_known_true(before == 0) and statically_known_true(after != 0):
                raise InternalError(f"Resize: dimension {dim} of size 0 has no pixels for {after}")
        return target

    @staticmethod
    def _scaled(input: torch.Tensor, scales: tuple[float, ...]) -> list[int]:
        if any(scale <= 0 or not (scale * _DYADIC).is_integer() for scale in scales):
            raise InternalError(f"Resize: expected scales that are multiples of 1/{_DYADIC}, got {scales}; give the shape instead")
        return [size * int(scale * _DYADIC) // _DYADIC for size, scale in zip(input.shape, scales, strict=True)]

    def _scale(self, dim: int) -> float | None:
        return None if self.scales is None else self.scales[dim]

    def _places(self, dim: int, extent: int, count: int, device: torch.device) -> torch.Tensor:
        """Where the ``count`` elements lie in a dimension, float32 ``[count]``."""
        steps = torch.arange(count, dtype=torch.float32, device=device)
        if count == 1 and (self.selector is ResizeSelector.UPPER or self.coordinates is ResizeCoordinates.ALIGN_CORNERS):
            return torch.zeros_like(steps)
        scale = self._scale(dim)
        step = extent / max(count, 1) if scale is None else 1 / scale
        match self.coordinates:
            case ResizeCoordinates.ALIGN_CORNERS:
                return steps * ((extent - 1) / max(count - 1, 1))
            case ResizeCoordinates.ASYMMETRIC:
                return steps * step
            case ResizeCoordinates.HALF_PIXEL:
                return (steps + 0.5) * step - 0.5

    def _rounded(self, place: torch.Tensor) -> torch.Tensor:
        match self.rounding:
            case ResizeRounding.HALF_UP:
                return torch.floor(place + 0.5)
            case ResizeRounding.HALF_DOWN:
                return torch.ceil(place - 0.5)
            case ResizeRounding.FLOOR:
                return torch.floor(place)
            case ResizeRounding.CEIL:
                return torch.ceil(place)

    def _interpolated(self, wide: torch.Tensor, dim: int, count: int) -> torch.Tensor:
        extent = wide.shape[dim]
        place = self._places(dim, extent, count, wide.device)
        first = torch.floor(place)
        taps = self._weights(place - first)
        inside = [(first + offset >= 0) & (first + offset < extent) for offset, _ in taps]
        weights = [weight for _, weight in taps]
        if self.exclude_outside:
            weights = [torch.where(valid, weight, 0.0) for weight, valid in zip(weights, inside, strict=True)]
            total = torch.stack(weights).sum(0)
            weights = [weight / total for weight in weights]
        along = [-1 if axis == dim else 1 for axis in range(wide.dim())]
        result = wide.new_zeros(())
        for (offset, _), weight in zip(taps, weights, strict=True):
            index = (first + offset).clamp(0, extent - 1).to(torch.int64)
            result = result + wide.index_select(dim, index) * weight.reshape(along)
        return result

    def _weights(self, fraction: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
        """Offsets of the pixels around a place and their weights ``[count]``."""
        if self.mode is Interpolation.LINEAR:
            return [(0, 1 - fraction), (1, fraction)]
        a = self.cubic_coefficient

        def near(distance: torch.Tensor) -> torch.Tensor:
            return ((a + 2) * distance - (a + 3)) * distance * distance + 1

        def far(distance: torch.Tensor) -> torch.Tensor:
            return ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a

        return [(-1, far(fraction + 1)), (0, near(fraction)), (1, near(1 - fraction)), (2, far(2 - fraction))]


_PADDINGS = {SliceMode.FILL: "zeros", SliceMode.CLAMP: "border", SliceMode.REFLECT: "reflection"}
_MODES = {Interpolation.NEAREST: "nearest", Interpolation.LINEAR: "bilinear", Interpolation.CUBIC: "bicubic"}


@dataclass(frozen=True, slots=True)
class GridSample(Layer):
    """Reads an image at the places of a grid, ``(x, y)`` or ``(x, y, z)`` in ``[-1, 1]``. Source: TensorRT operator page "GridSample".

    ``sample_mode`` says what a place outside reads: 0 (``FILL``), the nearest pixel (``CLAMP``) or the image reflected at its borders
    (``REFLECT``). With ``align_corners`` -1 and 1 are the centres of the outermost pixels, else their outer edges. ``NEAREST`` rounds
    ties to even. Half precisions are rounded once.
    """

    mode: Interpolation
    sample_mode: SliceMode
    align_corners: bool

    def run(self, input: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        """``[N, C, *], [N, *out, rank - 2] -> [N, C, *out]``, floating, of one dtype; ``CUBIC`` has 2 spatial dimensions, others 2 or 3."""
        floating("GridSample", input)
        same_dtype("GridSample", input, grid)
        same_rank("GridSample", input, grid)
        spatial = input.dim() - 2
        if spatial not in ((2,) if self.mode is Interpolation.CUBIC else (2, 3)):
            raise InternalError(f"GridSample {self.mode.value}: does not take {spatial} spatial dimensions")
        if self.sample_mode not in _PADDINGS:
            raise InternalError(f"GridSample: expected FILL, CLAMP or REFLECT, got {self.sample_mode.value}")
        if statically_known_true(grid.shape[-1] != spatial) or statically_known_true(grid.shape[0] != input.shape[0]):
            expected = [input.shape[0], "*", spatial]
            raise InternalError(f"GridSample: expected a grid of shape {expected}, got {list(grid.shape)}")
        shape = (*input.shape[:2], *grid.shape[1:-1])
        if not is_real(input) or 0 in shape:
            return input.new_empty(shape)
        wide, places = input.to(torch.float32), grid.to(torch.float32)
        return F.grid_sample(wide, places, _MODES[self.mode], _PADDINGS[self.sample_mode], self.align_corners).to(input.dtype)
