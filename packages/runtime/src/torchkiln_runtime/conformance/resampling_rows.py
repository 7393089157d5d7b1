"""Rows of the layers that read an image between its pixels."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

from torchkiln_core import Network, Value
from torchkiln_core.layers import GridSample, Interpolation, Resize, ResizeCoordinates, ResizeRounding, ResizeSelector, SliceMode
from torchkiln_runtime.conformance.fills import edges, in_range, random, uniform
from torchkiln_runtime.conformance.row import FLOATS, Operand, Row, Shape, Writer, apply

_NEAREST, _LINEAR, _CUBIC = Interpolation.NEAREST, Interpolation.LINEAR, Interpolation.CUBIC
_HALF_PIXEL = ResizeCoordinates.HALF_PIXEL
_RELAXED = 4
"""Factor on the tolerance of weighted sums."""


def resampling_rows() -> Iterator[Row]:
    """Resize and GridSample."""
    for dtype in FLOATS:
        yield from _nearest(dtype)
        yield from _weighted(dtype)
    yield from _weighted_details()
    yield from _shapes()
    for dtype in FLOATS:
        yield from _grids(dtype)
    yield from _grid_details()


def _to(layer: Resize, *spatial: tuple[int, ...]) -> Writer:
    """Resizes the last dimensions to each of ``spatial``, by a size operand."""

    def write(net: Network, image: Value) -> tuple[Value, ...]:
        kept = [image.shape[: image.rank - len(sizes)] for sizes in spatial]
        return tuple(net.add(layer, image, net.size_tensor((*before, *sizes))) for before, sizes in zip(kept, spatial, strict=True))

    return write


def _times(layer: Resize, *factors: int) -> Writer:
    """Resizes every dimension by a whole number, by a size operand."""

    def write(net: Network, image: Value) -> Value:
        return net.add(layer, image, net.size_tensor([size * factor for size, factor in zip(image.shape, factors, strict=True)]))

    return write


def _nearest(dtype: torch.dtype) -> Iterator[Row]:
    for coordinates in ResizeCoordinates if dtype is torch.float32 else (_HALF_PIXEL,):
        for rounding in ResizeRounding if dtype is torch.float32 else (ResizeRounding.FLOOR, ResizeRounding.HALF_DOWN):
            layer = Resize(_NEAREST, coordinates, rounding=rounding)
            operand = Operand(("n", 2, 4, 5), dtype, edges)
            case = f"NEAREST {coordinates.value} {rounding.value}"
            yield Row("Resize", case, dtype, (operand,), _to(layer, (7, 9), (3, 2), (8, 15)), exact=True)


def _weighted(dtype: torch.dtype) -> Iterator[Row]:
    for mode in (_LINEAR, _CUBIC):
        # Kernels of cubic weights take long to build.
        is_quick = mode is _LINEAR or dtype is torch.float32
        for coordinates in ResizeCoordinates if is_quick else (_HALF_PIXEL,):
            layer = Resize(mode, coordinates)
            case, operand = f"{mode.value} {coordinates.value}", Operand(("n", 2, 4, 5), dtype, random)
            spatial = ((7, 9), (3, 2)) if mode is _LINEAR else ((7, 3),)
            yield Row("Resize", case, dtype, (operand,), _to(layer, *spatial), relaxed=_RELAXED)
            if is_quick and coordinates is not ResizeCoordinates.ASYMMETRIC:
                image = Operand(("n", 2, "m", "k"), dtype, random)
                yield Row("Resize", f"{case} image", dtype, (image,), _times(layer, 1, 1, 2, 3), relaxed=_RELAXED)


def _weighted_details() -> Iterator[Row]:
    fixed, dtype = Operand(("n", 2, 4, 5), torch.float32, random), torch.float32
    for coordinates in (ResizeCoordinates.ALIGN_CORNERS, _HALF_PIXEL):
        layer = Resize(_CUBIC, coordinates, cubic_coefficient=-0.5, exclude_outside=True)
        case = f"CUBIC {coordinates.value} excludes outside"
        yield Row("Resize", case, dtype, (fixed,), _to(layer, (7, 3)), relaxed=_RELAXED)
    for mode, coordinates, selector in (
        *((mode, coordinates, ResizeSelector.FORMULA) for mode in (_NEAREST, _LINEAR) for coordinates in ResizeCoordinates),
        *((mode, _HALF_PIXEL, ResizeSelector.UPPER) for mode in (_NEAREST, _LINEAR)),
        (_CUBIC, ResizeCoordinates.ALIGN_CORNERS, ResizeSelector.FORMULA),
    ):
        layer = Resize(mode, coordinates, selector=selector)
        case = f"{mode.value} {coordinates.value} {selector.value} to one pixel"
        yield Row("Resize", case, dtype, (fixed,), _to(layer, (1, 9)), mode is _NEAREST, relaxed=_RELAXED)
    layer = Resize(_CUBIC, _HALF_PIXEL, cubic_coefficient=-0.5)
    yield Row("Resize", "CUBIC coefficient", dtype, (fixed,), _to(layer, (7, 9)), relaxed=_RELAXED)
    for case, layer in (("LINEAR", Resize(_LINEAR, _HALF_PIXEL)), ("CUBIC", Resize(_CUBIC, _HALF_PIXEL))):
        operand = Operand(("n", 4, 6), dtype, edges)
        yield Row("Resize", f"{case} edges", dtype, (operand,), _to(layer, (8, 6)), relaxed=_RELAXED)


def _shapes() -> Iterator[Row]:
    dtype = torch.float32
    for mode in Interpolation:
        exact = mode is _NEAREST
        for coordinates in ResizeCoordinates if mode is not _CUBIC else (_HALF_PIXEL,):
            layer = Resize(mode, coordinates, scales=(1.0, 1.0, 2.0, 1.5))
            operand = Operand(("n", 2, "m", 5), dtype, random)
            yield Row("Resize", f"{mode.value} {coordinates.value} scales", dtype, (operand,), apply(layer), exact, _RELAXED)
        layer = Resize(mode, _HALF_PIXEL)
        ranks: dict[str, tuple[Shape, tuple[int, ...]]] = {"rank 3": (("n", 3, "k"), (7,)), "empty": ((0, 2, 4, 5), (7, 9))}
        if mode is not _CUBIC:
            ranks |= {
                "rank 1": (("k",), (7,)),
                "rank 6": ((1, 2, 1, "n", 3, 4), (5, 6)),
                "3 dimensions": (("n", 2, "m", 4, 5), (6, 7, 3)),
            }
            fixed = dataclasses.replace(layer, shape=(2, 2, 6, 7))
            yield Row("Resize", f"{mode.value} shape", dtype, (Operand((2, 2, "m", "k"), dtype, random),), apply(fixed), exact, _RELAXED)
            down = dataclasses.replace(layer, scales=(1.0, 0.25))
            yield Row("Resize", f"{mode.value} scales down", dtype, (Operand(("n", 12), dtype, random),), apply(down), exact, _RELAXED)
        for case, (shape, spatial) in ranks.items():
            operand = Operand(shape, dtype, random)
            yield Row("Resize", f"{mode.value} {case}", dtype, (operand,), _to(layer, spatial), exact, _RELAXED)


def _grids(dtype: torch.dtype) -> Iterator[Row]:
    for mode in Interpolation:
        for sample in (SliceMode.FILL, SliceMode.CLAMP, SliceMode.REFLECT):
            for align in (False, True) if dtype is torch.float32 or sample is SliceMode.FILL else (False,):
                operands = (Operand(("n", 2, 5, 6), dtype, random), Operand(("n", 4, 3, 2), dtype, uniform(-1.9, 1.9)))
                case = f"{mode.value} {sample.value}{' aligned' if align else ''}"
                layer = apply(GridSample(mode, sample, align))
                yield Row("GridSample", case, dtype, operands, layer, exact=mode is _NEAREST, relaxed=16)


def _grid_details() -> Iterator[Row]:
    dtype = torch.float32
    grid = uniform(-1.9, 1.9)
    for mode in Interpolation:
        operands = (Operand(("n", 2, "m", "k"), dtype, random), Operand(("n", "k", "m", 2), dtype, grid))
        layer = apply(GridSample(mode, SliceMode.FILL, align_corners=False))
        yield Row("GridSample", f"{mode.value} image", dtype, operands, layer, exact=mode is _NEAREST, relaxed=16)
    for mode in (_NEAREST, _LINEAR):
        for sample in (SliceMode.FILL, SliceMode.CLAMP, SliceMode.REFLECT):
            operands = (Operand(("n", 2, 3, 4, 5), dtype, random), Operand(("n", 2, 3, 4, 3), dtype, grid))
            layer = apply(GridSample(mode, sample, align_corners=False))
            yield Row("GridSample", f"{mode.value} {sample.value} volume", dtype, operands, layer, exact=mode is _NEAREST, relaxed=16)
    ties = (Operand(("n", 2, 5, 5), dtype, random), Operand(("n", 7, 9, 2), dtype, in_range(-1, 1)))
    yield Row("GridSample", "NEAREST ties", dtype, ties, apply(GridSample(_NEAREST, SliceMode.FILL, align_corners=True)), exact=True)
    edge = (Operand(("n", 1, 4, 6), dtype, edges), Operand(("n", 4, 4, 2), dtype, grid))
    yield Row("GridSample", "NEAREST edges", dtype, edge, apply(GridSample(_NEAREST, SliceMode.CLAMP, align_corners=False)), exact=True)
    empty = (Operand(("n", 2, 5, 6), dtype, random), Operand(("n", 0, 3, 2), dtype, grid))
    yield Row("GridSample", "LINEAR empty", dtype, empty, apply(GridSample(_LINEAR, SliceMode.FILL, align_corners=False)), exact=True)
