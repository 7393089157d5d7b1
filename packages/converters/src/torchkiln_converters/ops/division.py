"""Division that rounds, and remainders.

Of floats PyTorch derives these from ``fmod``, which is exact however large the quotient. Layers say that only where the divisor is a
power of two of 1 or more, whose quotients, their whole parts and the products with them are all exact.
"""

from __future__ import annotations

import math

import torch

from torchkiln_converters.arrival import Operand, Result
from torchkiln_converters.converter import converter
from torchkiln_converters.ops.arithmetic import apply
from torchkiln_converters.support import BOOLS, INTEGERS, NUMBERS, Support
from torchkiln_converters.writing.values import (
    HALVES,
    add,
    cast,
    elementwise,
    less,
    mul,
    number,
    operand,
    select,
    sub,
    truncate,
)
from torchkiln_core import Network, OpCall, Requires, Value
from torchkiln_core.layers import ElementwiseOp

aten = torch.ops.aten
_LARGEST_POWER = 2.0**15
"""Which every floating dtype holds."""


def _is_exact(call: OpCall) -> bool:
    rounds_down = call.arguments.get("rounding_mode", "floor") == "floor"
    return not rounds_down or call.outputs[0].dtype in INTEGERS or _is_power(call.arguments["other"])


def _is_power(other: object) -> bool:
    return isinstance(other, (int, float)) and 1 <= abs(other) <= _LARGEST_POWER and math.frexp(abs(other))[0] == 0.5


_EXACT = Requires("integers, or a divisor that is a number 2^n with 0 <= n <= 15, or its negative", _is_exact)
_DIVISION = Support(dtypes=NUMBERS | BOOLS, results=NUMBERS, rules=(_EXACT,))


@converter((aten.div.Tensor_mode, aten.div.Scalar_mode), Support(results=NUMBERS, rules=(_EXACT,)))
def div_mode(net: Network, self: Operand, other: Operand, rounding_mode: str | None, result: Result) -> Value:
    """``div.Tensor_mode(Tensor self, Tensor other, *, str? rounding_mode)``."""
    if rounding_mode is None:
        return apply(net, ElementwiseOp.DIV, self, other, result)
    if rounding_mode == "floor":
        return _floored(net, self, other, result)
    if result.dtype in INTEGERS:
        return apply(net, ElementwiseOp.DIV, self, other, result)
    wide = torch.float32 if result.dtype in HALVES else result.dtype
    quotient = elementwise(net, ElementwiseOp.DIV, operand(net, self, wide), operand(net, other, wide))
    return truncate(net, cast(net, quotient, result.dtype))


@converter((aten.floor_divide.default, aten.floor_divide.Scalar), _DIVISION)
def floor_divide(net: Network, self: Operand, other: Operand, result: Result) -> Value:
    """``floor_divide(Tensor self, Tensor other)``."""
    return _floored(net, self, other, result)


@converter((aten.remainder.Tensor, aten.remainder.Scalar), _DIVISION)
def remainder(net: Network, self: Operand, other: Operand, result: Result) -> Value:
    """``remainder.Tensor(Tensor self, Tensor other)``, with the sign of ``other``."""
    if result.dtype in INTEGERS:
        return _integer_rest(net, ElementwiseOp.FLOOR_DIV, self, other, result)
    left, power = _wide(net, self, result), _power(other)
    rest = _rest(net, left, power)
    return cast(net, select(net, _opposed(net, rest, power), add(net, rest, number(net, power, left.dtype)), rest), result.dtype)


@converter((aten.fmod.Tensor, aten.fmod.Scalar), _DIVISION)
def fmod(net: Network, self: Operand, other: Operand, result: Result) -> Value:
    """``fmod.Tensor(Tensor self, Tensor other)``, with the sign of ``self``."""
    if result.dtype in INTEGERS:
        return _integer_rest(net, ElementwiseOp.DIV, self, other, result)
    return cast(net, _rest(net, _wide(net, self, result), _power(other)), result.dtype)


def _integer_rest(net: Network, division: ElementwiseOp, self: Operand, other: Operand, result: Result) -> Value:
    left, right = operand(net, self, result.dtype), operand(net, other, result.dtype)
    return sub(net, left, mul(net, elementwise(net, division, left, right), right))


def _wide(net: Network, item: Operand, result: Result) -> Value:
    """The dividend in float32, where no quotient of a half underflows."""
    return cast(net, operand(net, item, result.dtype), torch.float32)


def _power(other: Operand) -> float:
    if not isinstance(other, (int, float)):
        raise TypeError(f"the divisor is no number: {other!r}")
    return float(other)


def _rest(net: Network, left: Value, power: float) -> Value:
    """``fmod`` of floats by a power of two; NaN for an infinity."""
    whole = truncate(net, mul(net, left, number(net, 1 / power, left.dtype)))
    return sub(net, left, mul(net, whole, number(net, power, left.dtype)))


def _opposed(net: Network, rest: Value, power: float) -> Value:
    """Where a remainder's sign is not that of the divisor."""
    zero = number(net, 0, rest.dtype)
    return less(net, rest, zero) if power > 0 else less(net, zero, rest)


def _floored(net: Network, self: Operand, other: Operand, result: Result) -> Value:
    """Rounds the quotient down; of floats, an infinity divided is NaN, as its remainder is.

    Source: c10/util/generic_math.h, ``div_floor_floating``.
    """
    if result.dtype in INTEGERS:
        return apply(net, ElementwiseOp.FLOOR_DIV, self, other, result)
    left, power = _wide(net, self, result), _power(other)
    rest = _rest(net, left, power)
    whole = mul(net, sub(net, left, rest), number(net, 1 / power, left.dtype))
    below = sub(net, whole, number(net, 1, left.dtype))
    return cast(net, select(net, _opposed(net, rest, power), below, whole), result.dtype)
