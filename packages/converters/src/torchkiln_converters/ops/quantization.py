"""Quantization: integers of 8 bits with a scale and a zero point, as ``torch.ao`` writes them between the layers of a network.

PyTorch multiplies by the inverse of the scale, which near a tie rounds otherwise than the quotient that a ``Quantize`` layer takes. So the
product is a layer of its own here, and ``Quantize`` has a scale of 1.
"""

from __future__ import annotations

import ctypes
import importlib
import math
from typing import Any

import torch
from torch._ops import OpOverload

from torchkiln_converters.arrival import Result
from torchkiln_converters.converter import converter
from torchkiln_converters.support import BYTES, FLOATS, INTEGERS, Support
from torchkiln_converters.writing.narrow import is_scalable, widened
from torchkiln_converters.writing.shapes import axis_of, reshape
from torchkiln_converters.writing.values import add, cast, div, elementwise, mul, number, sub, unary
from torchkiln_core import ConstantValues, Network, OpCall, Requires, Value
from torchkiln_core.layers import Cast, Dequantize, ElementwiseOp, Quantize, UnaryOp

_LARGEST = 1 << 24
"""Up to here float32, in which PyTorch limits the results, holds every integer."""


def _register() -> None:
    """Defines the operators, where the torch in use has them there."""
    try:
        importlib.import_module("torch.ao.quantization.fx._decomposed")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("torch.ao"):
            raise


def _named(name: str, overload: str = "default") -> tuple[OpOverload[..., Any], ...]:
    """The operator of that name, if there is one."""
    packet = getattr(torch.ops.quantized_decomposed, name, None)
    return () if packet is None else (getattr(packet, overload),)


_register()


def _in_range(call: OpCall) -> bool:
    limits = torch.iinfo(call.outputs[0].dtype)
    low, high = call.arguments["quant_min"], call.arguments["quant_max"]
    return bool(max(limits.min, -_LARGEST) <= low <= high <= min(limits.max, _LARGEST))


def _is_positive(call: OpCall) -> bool:
    scale = call.arguments["scale"]
    return bool(scale > 0) and all(0 < ctypes.c_float(item).value < math.inf for item in (scale, 1.0 / scale))


def _one_each(call: OpCall) -> bool:
    return all(call.arguments[name].meta["val"].numel() == 1 for name in ("scale", "zero_point"))


_RANGE = Requires("quant_min <= quant_max in the range of the result's dtype and of the integers of float32", _in_range)
_POSITIVE = Requires("a scale above 0 that float32 holds, as it does its inverse", _is_positive)
_ONE = Requires("one scale and one zero point", _one_each)
_SIGNED = BYTES | {torch.int32}
_NUMBERS = FLOATS | INTEGERS


@converter(_named("quantize_per_tensor"), Support(dtypes=FLOATS, results=_SIGNED, rules=(_RANGE, _POSITIVE), ignores=("dtype",)))
def quantize(net: Network, input: Value, scale: float, zero_point: int, quant_min: int, quant_max: int, result: Result) -> Value:
    """``quantize_per_tensor(Tensor input, float scale, int zero_point, int quant_min, int quant_max, ScalarType dtype)``."""
    inverse = number(net, 1.0 / scale, torch.float32, input.rank)
    zero = number(net, zero_point, torch.float32) if zero_point else None
    return _quantized(net, mul(net, cast(net, input, torch.float32), inverse), zero, (quant_min, quant_max), result.dtype)


@converter(
    _named("quantize_per_tensor", "tensor"),
    Support(dtypes=FLOATS, arguments={"zero_point": _NUMBERS}, results=_SIGNED, rules=(_RANGE, _ONE), ignores=("dtype",)),
)
def quantize_by_tensor(
    net: Network, input: Value, scale: Value, zero_point: Value, quant_min: int, quant_max: int, result: Result
) -> Value:
    """``quantize_per_tensor.tensor(Tensor input, Tensor scale, Tensor zero_point, int quant_min, ...)``: both ``[]`` or ``[1]``."""
    wide = reshape(net, cast(net, scale, torch.float32), ())
    inverse = div(net, number(net, 1, torch.float32), wide)
    zero = _unless_zero(net, zero_point)
    zero = None if zero is None else reshape(net, zero, ())
    return _quantized(net, mul(net, cast(net, input, torch.float32), inverse), zero, (quant_min, quant_max), result.dtype)


@converter(
    _named("quantize_per_channel"),
    Support(dtypes=FLOATS, ranks=range(1, 9), arguments={"zero_points": _NUMBERS}, results=_SIGNED, rules=(_RANGE,), ignores=("dtype",)),
)
def quantize_channels(
    net: Network, input: Value, scales: Value, zero_points: Value, axis: int, quant_min: int, quant_max: int, result: Result
) -> Value:
    """``quantize_per_channel(Tensor input, Tensor scales, Tensor zero_points, int axis, int quant_min, ...)``: both ``[C]``."""
    wide = cast(net, scales, torch.float32)
    # PyTorch rounds the inverses to the dtype of the scales.
    inverse = cast(net, cast(net, div(net, number(net, 1, torch.float32, 1), wide), scales.dtype), torch.float32)
    zero = _unless_zero(net, zero_points)
    zero = None if zero is None else _along(net, zero, axis, input.rank)
    product = mul(net, cast(net, input, torch.float32), _along(net, inverse, axis, input.rank))
    return _quantized(net, product, zero, (quant_min, quant_max), result.dtype, axis_of(axis, input.rank))


def _quantized(
    net: Network, scaled: Value, zero: Value | None, limits: tuple[int, int], dtype: torch.dtype, axis: int | None = None
) -> Value:
    """Rounds, with ties to even, moves by the zero point, and limits; float32 ``[*]`` to ``dtype``."""
    ones = _ones(net, scaled, axis) if zero is None and dtype is torch.int8 and scaled.rank > 0 else None
    if ones is None:
        scaled = unary(net, UnaryOp.ROUND, scaled)
        scaled = scaled if zero is None else add(net, scaled, zero)
    held = torch.iinfo(dtype)
    for op, limit, of_dtype in ((ElementwiseOp.MAX, limits[0], held.min), (ElementwiseOp.MIN, limits[1], held.max)):
        if ones is None or limit != of_dtype:
            scaled = elementwise(net, op, scaled, number(net, limit, torch.float32))
    if ones is not None:
        return net.add(Quantize(torch.int8, axis), scaled, ones)
    whole = cast(net, scaled, torch.int32)
    return net.add(Cast(dtype), whole) if dtype in BYTES else whole


def _ones(net: Network, scaled: Value, axis: int | None) -> Value | None:
    """The scale of the ``Quantize`` layer, if one is right.

    TensorRT-RTX 1.6 crashes on a constant that is quantized by one scale, dequantized by one per channel, and a factor of a product.
    """
    if axis is not None:
        channels = scaled.shape[axis]
        return net.constant(torch.ones(channels)) if isinstance(channels, int) else None
    return None if ConstantValues(net).knows(scaled) else number(net, 1, torch.float32)


@converter(
    _named("dequantize_per_tensor"), Support(dtypes=_SIGNED, results=FLOATS, ignores=("quant_min", "quant_max", "dtype", "out_dtype"))
)
def dequantize(net: Network, input: Value, scale: float, zero_point: int, result: Result) -> Value:
    """``dequantize_per_tensor(Tensor input, float scale, int zero_point, int quant_min, int quant_max, ScalarType dtype, ...)``."""
    zero = number(net, zero_point, torch.float32) if zero_point else None
    return _restored(net, input, number(net, scale, torch.float32), zero, result)


@converter(
    _named("dequantize_per_tensor", "tensor"),
    Support(
        dtypes=_SIGNED,
        arguments={"scale": FLOATS, "zero_point": _NUMBERS},
        results=FLOATS,
        rules=(_ONE,),
        ignores=("quant_min", "quant_max", "dtype", "out_dtype"),
    ),
)
def dequantize_by_tensor(net: Network, input: Value, scale: Value, zero_point: Value, result: Result) -> Value:
    """``dequantize_per_tensor.tensor(Tensor input, Tensor scale, Tensor zero_point, int quant_min, ...)``: both ``[]`` or ``[1]``."""
    zero = _unless_zero(net, zero_point)
    zero = None if zero is None else reshape(net, zero, ())
    return _restored(net, input, reshape(net, cast(net, scale, torch.float32), ()), zero, result)


def _restored(net: Network, input: Value, scale: Value, zero: Value | None, result: Result) -> Value:
    """``(input - zero) * scale`` with the roundings of the result's dtype, in which PyTorch computes."""
    if zero is None and is_scalable(net, input, scale):
        return cast(net, net.add(Dequantize(torch.float32), input, scale), result.dtype)
    wide = cast(net, input, result.dtype) if input.dtype is torch.int32 else widened(net, input)
    wide = cast(net, wide, torch.float32)
    if zero is not None:
        wide = cast(net, cast(net, sub(net, wide, zero), result.dtype), torch.float32)
    return cast(net, mul(net, wide, scale), result.dtype)


@converter(
    _named("dequantize_per_channel"),
    Support(
        dtypes=_SIGNED,
        ranks=range(1, 9),
        arguments={"scales": FLOATS, "zero_points": _NUMBERS},
        results=FLOATS,
        ignores=("quant_min", "quant_max", "dtype", "out_dtype"),
    ),
)
def dequantize_channels(net: Network, input: Value, scales: Value, zero_points: Value | None, axis: int, result: Result) -> Value:
    """``dequantize_per_channel(Tensor input, Tensor scales, Tensor? zero_points, int axis, int quant_min, ...)``: both ``[C]``."""
    zero = None if zero_points is None else _unless_zero(net, zero_points, input.dtype is torch.int32)
    factor = cast(net, scales, torch.float32)
    if zero is None and is_scalable(net, input, factor):
        product = net.add(Dequantize(torch.float32, axis_of(axis, input.rank)), input, factor)
    else:
        wide = widened(net, input) if input.dtype in BYTES else input
        if zero is not None:
            # Differences of integers are exact; those of one byte also in float32.
            wide = sub(net, cast(net, wide, zero.dtype), _along(net, zero, axis, input.rank))
        product = mul(net, cast(net, wide, torch.float32), _along(net, factor, axis, input.rank))
    # PyTorch rounds products to the dtype of the scales.
    return cast(net, cast(net, product, scales.dtype), result.dtype)


def _unless_zero(net: Network, zero: Value, keeps_integers: bool = False) -> Value | None:
    """Zero points ``[*]`` in float32 (integers in int64, if asked for); ``None`` where they are known to be 0."""
    contents = ConstantValues(net).tensor(zero)
    if contents is not None and not bool(contents.any()):
        return None
    return cast(net, zero, torch.int64 if keeps_integers and zero.dtype in INTEGERS else torch.float32)


def _along(net: Network, values: Value, axis: int, rank: int) -> Value:
    """``[C]`` as ``[1, C, 1]`` with ``rank`` dimensions."""
    place = axis_of(axis, rank)
    return reshape(net, values, (*(1,) * place, *values.shape, *(1,) * (rank - place - 1)))
