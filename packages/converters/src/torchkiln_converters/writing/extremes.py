"""Largest and smallest with PyTorch's NaN.

TensorRT's elementwise layers return either operand where one is NaN, depending on the dtype; its reductions ignore NaN.
"""

from __future__ import annotations

import math

import torch

from torchkiln_converters.arrival import Operand
from torchkiln_converters.support import FLOATS
from torchkiln_converters.writing.values import cast, elementwise, number, operand, select, unary
from torchkiln_core import Network, Value
from torchkiln_core.layers import ElementwiseOp, Reduce, ReduceOp, UnaryOp

_BETTER = {ElementwiseOp.MAX: ElementwiseOp.GREATER, ElementwiseOp.MIN: ElementwiseOp.LESS}


def is_nan(net: Network, value: Value) -> Value:
    """Where floats are NaN."""
    return unary(net, UnaryOp.ISNAN, value)


def keep_nan(net: Network, value: Value, result: Value) -> Value:
    """``result``, which is a function of each element, with the NaN of ``value``."""
    return select(net, is_nan(net, value), value, result) if value.dtype in FLOATS else result


def extreme(net: Network, op: ElementwiseOp, value: Value, other: Operand) -> Value:
    """``MAX`` or ``MIN`` in the dtype of ``value``; of floats NaN where an operand is NaN.

    Comparisons with NaN are false, so that picking by a comparison keeps it: ``other`` is picked where it is better, and a NaN in
    ``value`` never loses. A NaN in ``other`` must be asked for, unless it is a number.
    """
    right = operand(net, other, value.dtype)
    if value.dtype not in FLOATS:
        return elementwise(net, op, value, right)
    if isinstance(other, Value):
        kept = elementwise(net, ElementwiseOp.OR, is_nan(net, value), elementwise(net, _BETTER[op], value, right))
        return select(net, kept, value, right)
    if isinstance(other, float) and math.isnan(other):
        return add_nan(net, value)
    return select(net, elementwise(net, _BETTER[op], right, value), right, value)


def extreme_number(net: Network, op: ElementwiseOp, left: Value, right: Value) -> Value:
    """``MAX`` or ``MIN``; of floats the operand that is not NaN."""
    if left.dtype not in FLOATS:
        return elementwise(net, op, left, right)
    kept = elementwise(net, ElementwiseOp.OR, is_nan(net, right), elementwise(net, _BETTER[op], left, right))
    return select(net, kept, left, right)


def add_nan(net: Network, value: Value) -> Value:
    """NaN in the shape of ``value``."""
    return elementwise(net, ElementwiseOp.SUM, value, number(net, math.nan, value.dtype, value.rank))


def reduce_extreme(net: Network, op: ReduceOp, value: Value, axes: tuple[int, ...], keepdim: bool) -> Value:
    """A ``MAX`` or ``MIN`` reduction; of floats NaN where an element is NaN, which a second reduction finds."""
    if value.rank == 0:
        return value
    found = net.add(Reduce(op, axes, keepdim), value)
    if value.dtype not in FLOATS:
        return found
    poisoned = net.add(Reduce(ReduceOp.MAX, axes, keepdim), cast(net, is_nan(net, value), torch.int32))
    return select(net, cast(net, poisoned, torch.bool), number(net, math.nan, value.dtype, found.rank), found)
