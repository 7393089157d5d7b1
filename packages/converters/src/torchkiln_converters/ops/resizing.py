"""Resizing of images: nearest pixels, and linear and cubic interpolation."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import sympy
import torch
from torch._ops import OpOverload

from torchkiln_converters.arrival import Result
from torchkiln_converters.converter import Converter, converter
from torchkiln_converters.support import FLOATS, Support, fake
from torchkiln_converters.writing.positions import positions
from torchkiln_converters.writing.shapes import expand, reshape, static_sizes
from torchkiln_converters.writing.values import cast, div, elementwise, mul, sized, unary
from torchkiln_core import Network, OpCall, Requires, Size, Value
from torchkiln_core.layers import ElementwiseOp, Gather, GatherMode, Interpolation, Resize, ResizeCoordinates, UnaryOp
from torchkiln_core.size import size_of

aten = torch.ops.aten


def _dimensions(call: OpCall) -> Iterator[tuple[Size, Size, float | None]]:
    """Old size, new size, and the scale if one is given, of every dimension but the first two."""
    arguments = call.arguments
    before, after = fake(call, next(iter(arguments))).shape[2:], call.outputs[0].shape[2:]
    scales: Sequence[Any] = [value for name, value in arguments.items() if name.startswith("scales")]
    if "scale_factors" in arguments:
        scales = arguments["scale_factors"] or [None] * len(before)
    return ((size_of(size), size_of(out), scale) for size, out, scale in zip(before, after, scales, strict=True))


def _factor(size: Size, out: Size) -> int | None:
    """The whole number by which a dimension grows, symbolic or not."""
    ratio = sympy.cancel(sympy.sympify(out) / sympy.sympify(size)) if size != 0 else None
    return int(ratio) if ratio is not None and ratio.is_Integer and ratio > 0 else None


def _float32(number: float) -> float:
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded


def _pixels(size: int, out: int, offset: float, scale: float | None = None) -> list[int]:
    """The pixel that each element reads, in float32 as in PyTorch. In plain numbers: the rules also run where tensors are fake."""
    step = _float32(size / out if scale is None else 1 / scale)
    return [min(math.floor(_float32((place + offset) * step)), size - 1) for place in range(out)]


def _steps_by_the_ratio(offset: float, call: OpCall) -> bool:
    """Whether a scale that is given reads the pixels that the sizes alone tell; among symbolic sizes only a whole one surely does."""
    for size, out, scale in _dimensions(call):
        if size == 0:
            return False
        if scale is None or _factor(size, out) == scale:
            continue
        if not isinstance(size, int) or not isinstance(out, int) or _pixels(size, out, offset, scale) != _pixels(size, out, offset):
            return False
    return True


def _nearest(net: Network, value: Value, shape: Sequence[Size], offset: float) -> Value:
    """Repeats the pixels of each dimension where all are repeated alike, else gathers them."""
    for axis in range(2, value.rank):
        size, out = value.shape[axis], shape[axis]
        times = _factor(size, out)
        if times is None or not _repeats(size, out, times, offset):
            value = net.add(Gather(GatherMode.DEFAULT, axis), value, _pixels_of(net, size, out, offset))
            continue
        lead, rest = value.shape[: axis + 1], value.shape[axis + 1 :]
        wide = value if times == 1 else expand(net, reshape(net, value, (*lead, 1, *rest)), (*lead, times, *rest))
        value = reshape(net, wide, (*lead[:-1], out, *rest))
    return value


def _repeats(size: Size, out: Size, times: int, offset: float) -> bool:
    """Whether every pixel is read ``times`` times in a row. Of all symbolic sizes that is sure for steps of powers of two."""
    if isinstance(size, int) and isinstance(out, int):
        return _pixels(size, out, offset) == [place // times for place in range(out)]
    return times & (times - 1) == 0


def _pixels_of(net: Network, size: Size, out: Size, offset: float) -> Value:
    """As ``_pixels``, int64 ``[out]``; computed from symbolic sizes in the same float32 steps."""
    if isinstance(size, int) and isinstance(out, int):
        return net.constant(torch.tensor(_pixels(size, out, offset)))
    step = div(net, sized(net, size, torch.float32, 1), sized(net, out, torch.float32, 1))
    places = mul(net, positions(net, out, torch.float32, offset), step)
    pixels = cast(net, unary(net, UnaryOp.FLOOR, places), torch.int64)
    return elementwise(net, ElementwiseOp.MIN, pixels, sized(net, size - 1, torch.int64, 1))


def _others(target: OpOverload[..., Any], *taken: str) -> tuple[str, ...]:
    return tuple(argument.name for argument in target._schema.arguments if argument.name not in taken)


def _by_pixels(target: OpOverload[..., Any], offset: float = 0.0) -> Converter[...]:
    """A converter that picks pixels. Source: ATen/native/UpSample.h, ``nearest_neighbor_compute_source_index`` and its exact sibling."""

    def of_input(net: Network, input: Value, result: Result) -> Value:
        return _nearest(net, input, result.shape, offset)

    def of_self(net: Network, self: Value, result: Result) -> Value:
        return _nearest(net, self, result.shape, offset)

    first = target._schema.arguments[0].name
    rule = Requires("scales that read the pixels which the sizes tell", functools.partial(_steps_by_the_ratio, offset), "static")
    support = Support(dtypes=FLOATS, ranks=range(3, 6), rules=(rule,), ignores=_others(target, first))
    return converter(target, support)(of_input if first == "input" else of_self)


def _has_the_ratio(call: OpCall) -> bool:
    """Whether each scale is the ratio of the sizes; PyTorch steps by a scale that is given, the layer by the sizes."""
    for size, out, scale in _dimensions(call):
        known = isinstance(size, int) and isinstance(out, int)
        if scale is not None and not (size * scale == out if known else _factor(size, out) == scale):
            return False
    return True


def _resize(net: Network, value: Value, shape: tuple[Size, ...], mode: Interpolation, *, align_corners: bool) -> Value:
    """Reads between pixels; places outside read the nearest pixel inside. Half dtypes are computed in float32, as in PyTorch."""
    coordinates = ResizeCoordinates.ALIGN_CORNERS if align_corners else ResizeCoordinates.HALF_PIXEL
    sizes = static_sizes(shape)
    layer = Resize(mode, coordinates, sizes)
    return net.add(layer, value) if sizes is not None else net.add(layer, value, net.size_tensor(shape))


def _between_pixels(target: OpOverload[..., Any], mode: Interpolation) -> Converter[...]:
    """A converter that interpolates. Source: ATen/native/UpSample.h, ``area_pixel_compute_source_index``."""

    def of_input(net: Network, input: Value, align_corners: bool, result: Result) -> Value:
        return _resize(net, input, result.shape, mode, align_corners=align_corners)

    def of_self(net: Network, self: Value, align_corners: bool, result: Result) -> Value:
        return _resize(net, self, result.shape, mode, align_corners=align_corners)

    first = target._schema.arguments[0].name
    rule = Requires("scales that are the ratios of the sizes", _has_the_ratio)
    support = Support(dtypes=FLOATS, ranks=range(3, 6), rules=(rule,), ignores=_others(target, first, "align_corners"))
    return converter(target, support)(of_input if first == "input" else of_self)


PICKED = tuple(
    _by_pixels(target, offset)
    for offset, packets in (
        (0.0, (aten.upsample_nearest1d, aten.upsample_nearest2d, aten.upsample_nearest3d)),
        (0.5, (aten._upsample_nearest_exact1d, aten._upsample_nearest_exact2d, aten._upsample_nearest_exact3d)),
    )
    for packet in packets
    for target in (packet.vec, packet.default)
)
"""Nearest pixels."""

INTERPOLATED = tuple(
    _between_pixels(target, mode)
    for packet, mode in (
        (aten.upsample_linear1d, Interpolation.LINEAR),
        (aten.upsample_bilinear2d, Interpolation.LINEAR),
        (aten.upsample_trilinear3d, Interpolation.LINEAR),
        (aten.upsample_bicubic2d, Interpolation.CUBIC),
    )
    for target in (packet.vec, packet.default)
)
"""Linear and cubic interpolation."""
