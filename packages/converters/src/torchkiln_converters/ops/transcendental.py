"""Functions of floats that several layers make, in float32."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._ops import OpOverload

from torchkiln_converters.arrival import Result
from torchkiln_converters.converter import Converter, converter
from torchkiln_converters.support import FLOATS, Support
from torchkiln_converters.writing.values import activation, add, cast, div, elementwise, equal, less, mul, number, select, sub, unary
from torchkiln_core import Network, Value
from torchkiln_core.layers import ActivationKind, ElementwiseOp, UnaryOp

aten = torch.ops.aten


def _log_by(target: OpOverload[..., Any], base: float) -> Converter[...]:
    def function(net: Network, self: Value, result: Result) -> Value:
        wide = cast(net, cast(net, self, result.dtype), torch.float32)
        return cast(net, mul(net, unary(net, UnaryOp.LOG, wide), number(net, 1 / math.log(base), torch.float32, self.rank)), result.dtype)

    function.__name__ = f"log{base:g}"
    return converter(target, Support(results=FLOATS))(function)


LOGARITHMS = (_log_by(aten.log2.default, 2.0), _log_by(aten.log10.default, 10.0))
"""Logarithms to other bases, through the natural one."""


def _near_zero(net: Network, wide: Value, near: Value, far: Value) -> Value:
    """``near`` where ``|wide| < 0.5``, else ``far``."""
    return select(net, less(net, unary(net, UnaryOp.ABS, wide), number(net, 0.5, wide.dtype)), near, far)


@converter(aten.log1p.default, Support(results=FLOATS))
def log1p(net: Network, self: Value, result: Result) -> Value:
    """``log1p(Tensor self)``: ``2 atanh(x / (2 + x))`` near 0, where ``1 + x`` would round; in float32."""
    wide = cast(net, cast(net, self, result.dtype), torch.float32)
    one, two = number(net, 1, torch.float32), number(net, 2, torch.float32)
    near = mul(net, unary(net, UnaryOp.ATANH, div(net, wide, add(net, wide, two))), two)
    return cast(net, _near_zero(net, wide, near, unary(net, UnaryOp.LOG, add(net, wide, one))), result.dtype)


@converter(aten.expm1.default, Support(results=FLOATS))
def expm1(net: Network, self: Value, result: Result) -> Value:
    """``expm1(Tensor self)``: ``2 t / (1 - t)`` with ``t = tanh(x / 2)`` near 0, where ``exp(x) - 1`` would cancel; in float32."""
    wide = cast(net, cast(net, self, result.dtype), torch.float32)
    one, two, half = (number(net, value, torch.float32) for value in (1, 2, 0.5))
    root = activation(net, mul(net, wide, half), ActivationKind.TANH)
    near = div(net, mul(net, root, two), sub(net, one, root))
    return cast(net, _near_zero(net, wide, near, sub(net, unary(net, UnaryOp.EXP, wide), one)), result.dtype)


@converter(aten.atan2.default, Support(results=FLOATS))
def atan2(net: Network, self: Value, other: Value, result: Result) -> Value:
    """``atan2(Tensor self, Tensor other)``: the angle in the first quadrant, mirrored by the signs, zeros' too; in float32."""
    rise, run = (cast(net, cast(net, value, result.dtype), torch.float32) for value in (self, other))
    high, wide = unary(net, UnaryOp.ABS, rise), unary(net, UnaryOp.ABS, run)
    zero = number(net, 0, torch.float32)
    # Equal operands divide to 1, except two zeros, whose angle is 0, and two infinities, which would be NaN.
    diagonal = unary(net, UnaryOp.SIGN, high)
    steep = unary(net, UnaryOp.ATAN, select(net, equal(net, high, wide), diagonal, div(net, high, wide)))
    angle = select(net, _is_negative(net, run, zero), sub(net, number(net, math.pi, torch.float32), steep), steep)
    return cast(net, select(net, _is_negative(net, rise, zero), unary(net, UnaryOp.NEG, angle), angle), result.dtype)


def _is_negative(net: Network, value: Value, zero: Value) -> Value:
    """Below 0, or -0, whose reciprocal is below 0."""
    below_zero = elementwise(net, ElementwiseOp.AND, equal(net, value, zero), less(net, unary(net, UnaryOp.RECIP, value), zero))
    return elementwise(net, ElementwiseOp.OR, less(net, value, zero), below_zero)
