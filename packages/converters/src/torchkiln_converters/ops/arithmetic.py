"""Arithmetic of two operands, with PyTorch's type promotion."""

from __future__ import annotations

import torch

from torchkiln_converters.arrival import Operand, Result, Scalar
from torchkiln_converters.converter import converter
from torchkiln_converters.support import BOOLS, FLOATS, INTEGERS, NETWORK_DTYPES, NUMBERS, Requires, Support
from torchkiln_converters.writing.values import (
    HALVES,
    add,
    cast,
    compute_dtype,
    elementwise,
    less,
    mul,
    number,
    operand,
    select,
    sub,
    unary,
)
from torchkiln_core import Network, OpCall, Value
from torchkiln_core.layers import ElementwiseOp, UnaryOp

aten = torch.ops.aten
_ANY = Support(dtypes=NETWORK_DTYPES, results=NUMBERS)


def _apply(net: Network, op: ElementwiseOp, left: Operand, right: Operand, result: Result) -> Value:
    """``op`` in the dtype that PyTorch computes in, rounded to the dtype of the result."""
    wide = compute_dtype(result.dtype, left, right)
    return cast(net, elementwise(net, op, operand(net, left, wide), operand(net, right, wide)), result.dtype)


def _sum(net: Network, op: ElementwiseOp, left: Operand, right: Operand, alpha: Scalar, result: Result) -> Value:
    if alpha == 1:
        return _apply(net, op, left, right, result)
    wide = torch.float32 if result.dtype in HALVES else result.dtype
    scaled = mul(net, operand(net, right, wide), number(net, alpha, wide))
    return cast(net, elementwise(net, op, operand(net, left, wide), scaled), result.dtype)


@converter((aten.add.Tensor, aten.add.Scalar), _ANY)
def add_tensor(net: Network, self: Operand, other: Operand, alpha: Scalar, result: Result) -> Value:
    """``add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1)``. bool plus bool is refused: no layer adds conditions."""
    return _sum(net, ElementwiseOp.SUM, self, other, alpha, result)


@converter((aten.sub.Tensor, aten.sub.Scalar), _ANY)
def sub_tensor(net: Network, self: Operand, other: Operand, alpha: Scalar, result: Result) -> Value:
    """``sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1)``."""
    return _sum(net, ElementwiseOp.SUB, self, other, alpha, result)


@converter((aten.rsub.Scalar, aten.rsub.Tensor), _ANY)
def rsub(net: Network, self: Operand, other: Operand, alpha: Scalar, result: Result) -> Value:
    """``rsub.Scalar(Tensor self, Scalar other, Scalar alpha=1)``: ``other - alpha * self``."""
    return _sum(net, ElementwiseOp.SUB, other, self, alpha, result)


@converter((aten.mul.Tensor, aten.mul.Scalar), Support())
def mul_tensor(net: Network, self: Operand, other: Operand, result: Result) -> Value:
    """``mul.Tensor(Tensor self, Tensor other)``; of bools, their conjunction."""
    op = ElementwiseOp.AND if result.dtype is torch.bool else ElementwiseOp.PROD
    return _apply(net, op, self, other, result)


@converter((aten.div.Tensor, aten.div.Scalar), Support(results=FLOATS))
def div_tensor(net: Network, self: Operand, other: Operand, result: Result) -> Value:
    """``div.Tensor(Tensor self, Tensor other)``; integers are divided as floats."""
    return _apply(net, ElementwiseOp.DIV, self, other, result)


def _has_layers(call: OpCall) -> bool:
    return call.arguments["rounding_mode"] != "floor" or call.outputs[0].dtype in INTEGERS


@converter(
    (aten.div.Tensor_mode, aten.div.Scalar_mode),
    Support(results=NUMBERS, rules=(Requires("integers when rounding_mode is floor", _has_layers),)),
)
def div_mode(net: Network, self: Operand, other: Operand, rounding_mode: str | None, result: Result) -> Value:
    """``div.Tensor_mode(Tensor self, Tensor other, *, str? rounding_mode)``.

    ``floor`` of floats is refused: PyTorch derives it from the exact remainder, which differs from rounding the quotient down.
    """
    if rounding_mode is None:
        return _apply(net, ElementwiseOp.DIV, self, other, result)
    if result.dtype in INTEGERS:
        op = ElementwiseOp.FLOOR_DIV if rounding_mode == "floor" else ElementwiseOp.DIV
        return _apply(net, op, self, other, result)
    wide = torch.float32 if result.dtype in HALVES else result.dtype
    quotient = elementwise(net, ElementwiseOp.DIV, operand(net, self, wide), operand(net, other, wide))
    return truncate(net, cast(net, quotient, result.dtype))


def truncate(net: Network, value: Value) -> Value:
    """Rounds floats towards zero."""
    below = less(net, value, number(net, 0, value.dtype, value.rank))
    return select(net, below, unary(net, UnaryOp.CEIL, value), unary(net, UnaryOp.FLOOR, value))


@converter((aten.floor_divide.default, aten.floor_divide.Scalar), Support(dtypes=INTEGERS | BOOLS, results=INTEGERS))
def floor_divide(net: Network, self: Operand, other: Operand, result: Result) -> Value:
    """``floor_divide(Tensor self, Tensor other)`` of integers."""
    return _apply(net, ElementwiseOp.FLOOR_DIV, self, other, result)


@converter((aten.remainder.Tensor, aten.remainder.Scalar), Support(dtypes=INTEGERS | BOOLS, results=INTEGERS))
def remainder(net: Network, self: Operand, other: Operand, result: Result) -> Value:
    """``remainder.Tensor(Tensor self, Tensor other)`` of integers, with the sign of ``other``."""
    left, right = operand(net, self, result.dtype), operand(net, other, result.dtype)
    return sub(net, left, mul(net, elementwise(net, ElementwiseOp.FLOOR_DIV, left, right), right))


@converter((aten.fmod.Tensor, aten.fmod.Scalar), Support(dtypes=INTEGERS | BOOLS, results=INTEGERS))
def fmod(net: Network, self: Operand, other: Operand, result: Result) -> Value:
    """``fmod.Tensor(Tensor self, Tensor other)`` of integers, with the sign of ``self``."""
    left, right = operand(net, self, result.dtype), operand(net, other, result.dtype)
    return sub(net, left, mul(net, elementwise(net, ElementwiseOp.DIV, left, right), right))


@converter(aten.maximum.default)
def maximum(net: Network, self: Value, other: Value, result: Result) -> Value:
    """``maximum(Tensor self, Tensor other)``. PyTorch gives NaN where an operand is NaN."""
    op = ElementwiseOp.OR if result.dtype is torch.bool else ElementwiseOp.MAX
    return _apply(net, op, self, other, result)


@converter(aten.minimum.default)
def minimum(net: Network, self: Value, other: Value, result: Result) -> Value:
    """``minimum(Tensor self, Tensor other)``. PyTorch gives NaN where an operand is NaN."""
    op = ElementwiseOp.AND if result.dtype is torch.bool else ElementwiseOp.MIN
    return _apply(net, op, self, other, result)


@converter(aten.addcmul.default, Support(dtypes=NUMBERS))
def addcmul(net: Network, self: Value, tensor1: Value, tensor2: Value, value: Scalar, result: Result) -> Value:
    """``addcmul(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1)``: ``self + value * tensor1 * tensor2``."""
    wide = torch.float32 if result.dtype in HALVES else result.dtype
    first, second = cast(net, tensor1, wide), cast(net, tensor2, wide)
    scaled = first if value == 1 else mul(net, first, number(net, value, wide))
    return cast(net, add(net, cast(net, self, wide), mul(net, scaled, second)), result.dtype)


@converter(aten.addcdiv.default, Support(dtypes=FLOATS))
def addcdiv(net: Network, self: Value, tensor1: Value, tensor2: Value, value: Scalar, result: Result) -> Value:
    """``addcdiv(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1)``: ``self + value * tensor1 / tensor2``."""
    wide = torch.float32 if result.dtype in HALVES else result.dtype
    first, second = cast(net, tensor1, wide), cast(net, tensor2, wide)
    scaled = first if value == 1 else mul(net, first, number(net, value, wide))
    quotient = elementwise(net, ElementwiseOp.DIV, scaled, second)
    return cast(net, add(net, cast(net, self, wide), quotient), result.dtype)


@converter(aten.lerp.Scalar, Support(dtypes=FLOATS))
def lerp(net: Network, self: Value, end: Value, weight: Scalar, result: Result) -> Value:
    """``lerp.Scalar(Tensor self, Tensor end, Scalar weight)``; for weights of a half or more PyTorch counts back from ``end``."""
    wide = torch.float32 if result.dtype in HALVES else result.dtype
    start, stop = cast(net, self, wide), cast(net, end, wide)
    difference = sub(net, stop, start)
    if abs(weight) < 0.5:
        mixed = add(net, start, mul(net, difference, number(net, weight, wide)))
    else:
        mixed = sub(net, stop, mul(net, difference, number(net, 1 - weight, wide)))
    return cast(net, mixed, result.dtype)
