"""Rows of the layers that read an image between its pixels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from core_layer_cases import Case, Sizes, T

from torchkiln_core.layers import GridSample, Interpolation, Resize, ResizeCoordinates, ResizeRounding, ResizeSelector, SliceMode
from torchkiln_testing import OpClass

F16, BF16 = torch.float16, torch.bfloat16
NEAREST, LINEAR, CUBIC = Interpolation.NEAREST, Interpolation.LINEAR, Interpolation.CUBIC
CORNERS, ASYMMETRIC, HALF_PIXEL = ResizeCoordinates.ALIGN_CORNERS, ResizeCoordinates.ASYMMETRIC, ResizeCoordinates.HALF_PIXEL
REDUCTION = OpClass.REDUCTION
IMAGE = T(("n", 2, "m", 5))
DOUBLE = (IMAGE, Sizes(("n", 2, "2*m", 10)))


def _twice(x, **how):
    return F.interpolate(x, (2 * x.shape[2], 10), **how)


def _in_float32(function):
    return lambda x, *rest: function(x.float(), *(tensor.float() for tensor in rest)).to(x.dtype)


RESIZES = [
    Case("resize-nearest", Resize(NEAREST, ASYMMETRIC), DOUBLE, lambda x: _twice(x, mode="nearest")),
    Case(
        "resize-nearest-exact",
        Resize(NEAREST, HALF_PIXEL, (1, 2, 7, 3), rounding=ResizeRounding.HALF_UP),
        (T((1, 2, 4, 5), BF16),),
        lambda x: F.interpolate(x, (7, 3), mode="nearest-exact"),
    ),
    Case(
        "resize-nearest-ceil",
        Resize(NEAREST, ASYMMETRIC, (6,), rounding=ResizeRounding.CEIL),
        (T((3,)),),
        lambda x: x[[0, 1, 1, 2, 2, 2]],
    ),
    Case(
        "resize-nearest-half-down",
        Resize(NEAREST, ASYMMETRIC, (6,), rounding=ResizeRounding.HALF_DOWN),
        (T((3,)),),
        lambda x: x[[0, 0, 1, 1, 2, 2]],
    ),
    Case(
        "resize-linear",
        Resize(LINEAR, HALF_PIXEL),
        DOUBLE,
        lambda x: _twice(x, mode="bilinear", align_corners=False),
        REDUCTION,
    ),
    Case("resize-linear-corners", Resize(LINEAR, CORNERS), DOUBLE, lambda x: _twice(x, mode="bilinear", align_corners=True), REDUCTION),
    Case(
        "resize-linear-asymmetric",
        Resize(LINEAR, ASYMMETRIC, (4,)),
        (T((2,)),),
        lambda x: torch.stack([x[0], (x[0] + x[1]) / 2, x[1], x[1]]),
        REDUCTION,
    ),
    Case(
        "resize-linear-down",
        Resize(LINEAR, HALF_PIXEL, (1, 2, 3, 4)),
        (T((1, 2, 7, 9), F16),),
        _in_float32(lambda x: F.interpolate(x, (3, 4), mode="bilinear")),
        REDUCTION,
    ),
    Case(
        "resize-linear-1d",
        Resize(LINEAR, HALF_PIXEL),
        (T(("n", 2, "m")), Sizes(("n", 2, "3*m"))),
        lambda x: F.interpolate(x, scale_factor=3, mode="linear"),
        REDUCTION,
    ),
    Case(
        "resize-linear-3d",
        Resize(LINEAR, CORNERS, (1, 2, 5, 2, 7)),
        (T((1, 2, 3, 4, 5)),),
        lambda x: F.interpolate(x, (5, 2, 7), mode="trilinear", align_corners=True),
        REDUCTION,
    ),
    Case(
        "resize-linear-one-pixel",
        Resize(LINEAR, CORNERS, (1, 2, 1, 3)),
        (T((1, 2, 4, 5)),),
        lambda x: F.interpolate(x, (1, 3), mode="bilinear", align_corners=True),
        REDUCTION,
    ),
    Case(
        "resize-linear-upper-pixel",
        Resize(LINEAR, HALF_PIXEL, (1, 2, 1, 5), selector=ResizeSelector.UPPER),
        (T((1, 2, 4, 5)),),
        lambda x: x[:, :, :1],
    ),
    Case(
        "resize-scales",
        Resize(NEAREST, ASYMMETRIC, scales=(1.0, 1.0, 2.0, 0.5)),
        (T(("n", 2, "m", 6)),),
        lambda x: x.repeat_interleave(2, 2)[..., ::2],
    ),
    Case(
        "resize-scales-floor",
        Resize(NEAREST, ASYMMETRIC, scales=(1.0, 1.5)),
        (T(("n", "m")),),
        lambda x: F.interpolate(x[None], int(x.shape[1] * 1.5))[0],
    ),
    Case("resize-cubic", Resize(CUBIC, HALF_PIXEL), DOUBLE, lambda x: _twice(x, mode="bicubic", align_corners=False), REDUCTION),
    Case(
        "resize-cubic-corners",
        Resize(CUBIC, CORNERS, (1, 2, 3, 7)),
        (T((1, 2, 4, 5)),),
        lambda x: F.interpolate(x, (3, 7), mode="bicubic", align_corners=True),
        REDUCTION,
    ),
    Case(
        "resize-cubic-excludes-outside",
        Resize(CUBIC, ASYMMETRIC, (4,), cubic_coefficient=-0.5, exclude_outside=True),
        (T((2,)),),
        # Keys' weights at 1/2 are -1/16, 9/16, 9/16, -1/16; of those, two lie inside here and one there.
        lambda x: torch.stack([x[0], (x[0] + x[1]) / 2, x[1], (x[1] * 9 - x[0]) / 8]),
        REDUCTION,
    ),
    Case("resize-empty", Resize(LINEAR, HALF_PIXEL, (0, 3, 8)), (T((0, 3, 4)),), lambda x: x.new_empty(0, 3, 8)),
]


def _grid(name, mode, sample, align, *, like, spatial=("n", 3), dtype=torch.float32, image=("n", 2, "m", 6)):
    operands = (T(image, dtype), T((image[0], *spatial, len(image) - 2), dtype, -1.7, 1.7))
    expected = _in_float32(lambda x, grid: F.grid_sample(x, grid, **like, align_corners=align))
    return Case(f"grid-{name}", GridSample(mode, sample, align), operands, expected, REDUCTION)


GRIDS = [
    _grid("linear", LINEAR, SliceMode.FILL, False, like={"mode": "bilinear", "padding_mode": "zeros"}),
    _grid("linear-reflect", LINEAR, SliceMode.REFLECT, True, like={"mode": "bilinear", "padding_mode": "reflection"}),
    _grid("nearest-clamp", NEAREST, SliceMode.CLAMP, False, like={"mode": "nearest", "padding_mode": "border"}),
    _grid("cubic-half", CUBIC, SliceMode.FILL, True, like={"mode": "bicubic", "padding_mode": "zeros"}, dtype=F16),
    _grid(
        "linear-3d",
        LINEAR,
        SliceMode.CLAMP,
        False,
        like={"mode": "bilinear", "padding_mode": "border"},
        spatial=(2, "n", 3),
        image=(1, 2, 3, "m", 4),
    ),
    Case(
        "grid-centres",
        GridSample(NEAREST, SliceMode.FILL, False),
        (T((1, 1, 2, 2)), T((1, 1, 1, 2), low=0.4, high=0.6)),
        lambda x, grid: x[:, :, 1:, 1:],
    ),
    Case(
        "grid-empty",
        GridSample(LINEAR, SliceMode.FILL, False),
        (T(("n", 2, 3, 4)), T(("n", 0, 5, 2))),
        lambda x, grid: x.new_empty(x.shape[0], 2, 0, 5),
    ),
]
ROWS = [*RESIZES, *GRIDS]
