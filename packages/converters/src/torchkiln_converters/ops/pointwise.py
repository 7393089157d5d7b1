"""Functions of each element, comparisons, logic and selection."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from torchkiln_converters.arrival import Operand, Result, Scalar
from torchkiln_converters.converter import Converter, converter
from torchkiln_converters.support import BOOLS, FLOATS, INTEGERS, NUMBERS, Support
from torchkiln_converters.writing.values import (
    HALVES,
    as_bool,
    cast,
    elementwise,
    equal,
    mul,
    negated,
    number,
    operand,
    promoted,
    select,
    truncate,
    unary,
)
from torchkiln_core import Network, OpCall, Requires, Value
from torchkiln_core.layers import ElementwiseOp, UnaryOp

aten = torch.ops.aten


def _unary(target: OpOverload[..., Any], op: UnaryOp) -> Converter[...]:
    """A function of floats; integers and bools are converted to the result's dtype first."""

    def function(net: Network, self: Value, result: Result) -> Value:
        return unary(net, op, cast(net, self, result.dtype))

    function.__name__ = op.name.lower()
    return converter(target, Support(results=FLOATS))(function)


UNARY = tuple(
    _unary(target, op)
    for target, op in (
        (aten.exp.default, UnaryOp.EXP),
        (aten.log.default, UnaryOp.LOG),
        (aten.sqrt.default, UnaryOp.SQRT),
        (aten.reciprocal.default, UnaryOp.RECIP),
        (aten.sin.default, UnaryOp.SIN),
        (aten.cos.default, UnaryOp.COS),
        (aten.tan.default, UnaryOp.TAN),
        (aten.sinh.default, UnaryOp.SINH),
        (aten.cosh.default, UnaryOp.COSH),
        (aten.asin.default, UnaryOp.ASIN),
        (aten.acos.default, UnaryOp.ACOS),
        (aten.atan.default, UnaryOp.ATAN),
        (aten.asinh.default, UnaryOp.ASINH),
        (aten.acosh.default, UnaryOp.ACOSH),
        (aten.atanh.default, UnaryOp.ATANH),
        (aten.erf.default, UnaryOp.ERF),
    )
)
"""Functions that TensorRT has as a unary layer."""


def _rounding(target: OpOverload[..., Any], op: UnaryOp) -> Converter[...]:
    """Integers are their own result."""

    def function(net: Network, self: Value) -> Value:
        return self if self.dtype in INTEGERS else unary(net, op, self)

    function.__name__ = op.name.lower()
    return converter(target, Support(dtypes=NUMBERS))(function)


ROUNDING = tuple(
    _rounding(target, op)
    for target, op in ((aten.floor.default, UnaryOp.FLOOR), (aten.ceil.default, UnaryOp.CEIL), (aten.round.default, UnaryOp.ROUND))
)
"""Rounding; ``round`` rounds halves to even."""


def _signed(target: OpOverload[..., Any], op: UnaryOp) -> Converter[...]:
    def function(net: Network, self: Value) -> Value:
        return unary(net, op, self)

    function.__name__ = op.name.lower()
    return converter(target, Support(dtypes=NUMBERS))(function)


SIGNED = tuple(_signed(target, op) for target, op in ((aten.abs.default, UnaryOp.ABS), (aten.neg.default, UnaryOp.NEG)))
"""Functions that integers have too."""


@converter(aten.sign.default, Support(dtypes=NUMBERS))
def sign(net: Network, self: Value) -> Value:
    """``sign(Tensor self)``: 0 for NaN, where the layer gives NaN."""
    found = unary(net, UnaryOp.SIGN, self)
    if self.dtype in INTEGERS:
        return found
    return select(net, unary(net, UnaryOp.ISNAN, self), number(net, 0, self.dtype, self.rank), found)


@converter(aten.trunc.default, Support(dtypes=NUMBERS))
def trunc(net: Network, self: Value) -> Value:
    """``trunc(Tensor self)``: rounds towards zero."""
    return self if self.dtype in INTEGERS else truncate(net, self)


@converter(aten.rsqrt.default, Support(results=FLOATS))
def rsqrt(net: Network, self: Value, result: Result) -> Value:
    """``rsqrt(Tensor self)``, in float32 for half dtypes, which PyTorch rounds once."""
    wide = torch.float32 if result.dtype in HALVES else result.dtype
    return cast(net, unary(net, UnaryOp.RECIP, unary(net, UnaryOp.SQRT, cast(net, self, wide))), result.dtype)


_EXACT_POWERS = "floats, or an exponent that is a number of 1 or more: TensorRT computes powers of integers in float32"


def _is_exact_power(call: OpCall) -> bool:
    exponent = call.arguments["exponent"]
    return call.outputs[0].dtype in FLOATS or (isinstance(exponent, int) and exponent > 0)


@converter(
    (aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar),
    Support(results=NUMBERS, rules=(Requires(_EXACT_POWERS, _is_exact_power),)),
)
def pow_(net: Network, self: Operand, exponent: Operand, result: Result) -> Value:
    """``pow.Tensor_Scalar(Tensor self, Scalar exponent)``; small exponents are products and roots, as in PyTorch.

    Powers of integers are products, however large: TensorRT computes them in float32.
    """
    wide = torch.float32 if result.dtype in HALVES else result.dtype
    base = operand(net, self, wide)
    if isinstance(exponent, (int, float)) and (short := _short_power(net, base, exponent)) is not None:
        return cast(net, short, result.dtype)
    return cast(net, elementwise(net, ElementwiseOp.POW, base, operand(net, exponent, wide)), result.dtype)


def _short_power(net: Network, base: Value, exponent: Scalar) -> Value | None:
    if exponent in (1, 2, 3) or base.dtype in INTEGERS:
        return _whole_power(net, base, int(exponent))
    match exponent:
        case 0.5:
            return unary(net, UnaryOp.SQRT, base)
        case -0.5:
            return unary(net, UnaryOp.RECIP, unary(net, UnaryOp.SQRT, base))
        case -1:
            return unary(net, UnaryOp.RECIP, base)
        case -2:
            return unary(net, UnaryOp.RECIP, mul(net, base, base))
        case _:
            return None


def _whole_power(net: Network, base: Value, exponent: int) -> Value:
    """A power of 1 or more, by squaring: of integers it overflows as PyTorch's does."""
    if exponent == 1:
        return base
    half = _whole_power(net, base, exponent // 2)
    square = mul(net, half, half)
    return mul(net, square, base) if exponent % 2 else square


def _comparison(name: str, op: ElementwiseOp, *, negate: bool) -> Converter[...]:
    """Compares in the promoted dtype. ``ge`` and ``le`` of floats are written so that NaN compares false."""

    def function(net: Network, self: Operand, other: Operand) -> Value:
        dtype = promoted(self, other)
        if dtype is torch.bool and op is not ElementwiseOp.EQUAL:
            dtype = torch.int32
        left, right = operand(net, self, dtype), operand(net, other, dtype)
        found = elementwise(net, op, left, right)
        if op is not ElementwiseOp.EQUAL and negate:
            return _or_equal(net, op, left, right)
        return negated(net, found) if negate else found

    function.__name__ = name
    overloads = getattr(aten, name)
    return converter((overloads.Tensor, overloads.Scalar), Support())(function)


def _or_equal(net: Network, op: ElementwiseOp, left: Value, right: Value) -> Value:
    """Not the opposite order for integers; for floats, where NaN has no order, order or equality."""
    if left.dtype in INTEGERS:
        return negated(net, elementwise(net, op, left, right))
    swapped = ElementwiseOp.LESS if op is ElementwiseOp.GREATER else ElementwiseOp.GREATER
    return elementwise(net, ElementwiseOp.OR, elementwise(net, swapped, left, right), equal(net, left, right))


COMPARISONS = (
    _comparison("eq", ElementwiseOp.EQUAL, negate=False),
    _comparison("ne", ElementwiseOp.EQUAL, negate=True),
    _comparison("lt", ElementwiseOp.LESS, negate=False),
    _comparison("gt", ElementwiseOp.GREATER, negate=False),
    _comparison("ge", ElementwiseOp.LESS, negate=True),
    _comparison("le", ElementwiseOp.GREATER, negate=True),
)
"""Comparisons."""


def _logical(target: OpOverload[..., Any], op: ElementwiseOp) -> Converter[...]:
    def function(net: Network, self: Value, other: Value) -> Value:
        return elementwise(net, op, as_bool(net, self), as_bool(net, other))

    function.__name__ = f"logical_{op.name.lower()}"
    return converter(target, Support())(function)


def _bitwise(targets: tuple[OpOverload[..., Any], ...], op: ElementwiseOp) -> Converter[...]:
    def function(net: Network, self: Operand, other: Operand) -> Value:
        return elementwise(net, op, operand(net, self, torch.bool), operand(net, other, torch.bool))

    function.__name__ = f"bitwise_{op.name.lower()}"
    return converter(targets, Support(dtypes=BOOLS, results=BOOLS))(function)


LOGIC = (
    _logical(aten.logical_and.default, ElementwiseOp.AND),
    _logical(aten.logical_or.default, ElementwiseOp.OR),
    _logical(aten.logical_xor.default, ElementwiseOp.XOR),
    _bitwise((aten.bitwise_and.Tensor, aten.bitwise_and.Scalar), ElementwiseOp.AND),
    _bitwise((aten.bitwise_or.Tensor, aten.bitwise_or.Scalar), ElementwiseOp.OR),
    _bitwise((aten.bitwise_xor.Tensor, aten.bitwise_xor.Scalar), ElementwiseOp.XOR),
)
"""Logic of conditions; bits of numbers have no layer."""


@converter(aten.logical_not.default)
def logical_not(net: Network, self: Value) -> Value:
    """``logical_not(Tensor self)``; NaN counts as true."""
    return negated(net, self) if self.dtype is torch.bool else equal(net, self, number(net, 0, self.dtype, self.rank))


@converter(aten.bitwise_not.default, Support(dtypes=BOOLS | INTEGERS))
def bitwise_not(net: Network, self: Value) -> Value:
    """``bitwise_not(Tensor self)``: ``-1 - self`` for integers."""
    if self.dtype is torch.bool:
        return negated(net, self)
    return elementwise(net, ElementwiseOp.SUB, number(net, -1, self.dtype, self.rank), self)


@converter(aten.isnan.default)
def isnan(net: Network, self: Value) -> Value:
    """``isnan(Tensor self)``, as ``self != self``: the identity holds for every dtype."""
    return negated(net, equal(net, self, self)) if self.dtype not in FLOATS else unary(net, UnaryOp.ISNAN, self)


@converter(aten.isinf.default, Support(dtypes=FLOATS))
def isinf(net: Network, self: Value) -> Value:
    """``isinf(Tensor self)``."""
    return unary(net, UnaryOp.ISINF, self)


@converter(aten.where.self, Support(arguments={"condition": BOOLS}))
def where(net: Network, condition: Value, self: Operand, other: Operand, result: Result) -> Value:
    """``where.self(Tensor condition, Tensor self, Tensor other)``."""
    return select(net, condition, operand(net, self, result.dtype), operand(net, other, result.dtype))


@converter((aten.masked_fill.Scalar, aten.masked_fill.Tensor), Support(arguments={"mask": BOOLS}))
def masked_fill(net: Network, self: Value, mask: Value, value: Operand, result: Result) -> Value:
    """``masked_fill.Scalar(Tensor self, Tensor mask, Scalar value)``."""
    return select(net, mask, operand(net, value, result.dtype), cast(net, self, result.dtype))
