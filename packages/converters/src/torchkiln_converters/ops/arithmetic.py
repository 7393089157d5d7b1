"""Arithmetic of two operands, with PyTorch's type promotion."""

from __future__ import annotations

import torch

from torchkiln_converters.arrival import Operand, Result, Scalar
from torchkiln_converters.converter import converter
from torchkiln_converters.support import FLOATS, NETWORK_DTYPES, NUMBERS, Support
from torchkiln_converters.writing.values import (
    HALVES,
    add,
    cast,
    compute_dtype,
    elementwise,
    mul,
    number,
    operand,
    sub,
)
from torchkiln_core import Network, OpCall, Requires, Value
from torchkiln_core.layers import ElementwiseOp

aten = torch.ops.aten
_ANY = Support(dtypes=NETWORK_DTYPES, results=NUMBERS)


def apply(net: Network, op: ElementwiseOp, left: Operand, right: Operand, result: Result) -> Value:
    """``op`` in the dtype that PyTorch computes in, rounded to the dtype of the result."""
    wide = compute_dtype(result.dtype, left, right)
    return cast(net, elementwise(net, op, operand(net, left, wide), operand(net, right, wide)), result.dtype)


def _sum(net: Network, op: ElementwiseOp, left: Operand, right: Operand, alpha: Scalar, result: Result) -> Value:
    if alpha == 1:
        return apply(net, op, left, right, result)
    wide = torch.float32 if result.dtype in HALVES else result.dtype
    scaled = mul(net, operand(net, right, wide), number(net, alpha, wide))
    return cast(net, elementwise(net, op, operand(net, left, wide), scaled), result.dtype)


def _sums_once(call: OpCall) -> bool:
    return call.outputs[0].dtype is not torch.bool or call.arguments["alpha"] == 1


@converter((aten.add.Tensor, aten.add.Scalar), Support(rules=(Requires("alpha 1 for conditions", _sums_once),)))
def add_tensor(net: Network, self: Operand, other: Operand, alpha: Scalar, result: Result) -> Value:
    """``add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1)``; of bools, whether one of them holds."""
    if result.dtype is torch.bool:
        return apply(net, ElementwiseOp.OR, self, other, result)
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
    return apply(net, op, self, other, result)


@converter((aten.div.Tensor, aten.div.Scalar), Support(results=FLOATS))
def div_tensor(net: Network, self: Operand, other: Operand, result: Result) -> Value:
    """``div.Tensor(Tensor self, Tensor other)``; integers are divided as floats."""
    return apply(net, ElementwiseOp.DIV, self, other, result)


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
