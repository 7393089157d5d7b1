"""Numbers, casts and elementwise layers with PyTorch's broadcasting and type promotion."""

from __future__ import annotations

import sympy
import torch

from torchkiln_converters.arrival import Operand, Scalar
from torchkiln_converters.writing.shapes import reshape, with_rank
from torchkiln_core import Network, Size, Value
from torchkiln_core.layers import Activation, ActivationKind, Cast, Elementwise, ElementwiseOp, Select, Unary, UnaryOp

HALVES = (torch.float16, torch.bfloat16)
"""Dtypes whose arithmetic PyTorch does in float32, rounding once."""


def cast(net: Network, value: Value, dtype: torch.dtype) -> Value:
    """Converts, unless the value has the dtype already."""
    return value if value.dtype is dtype else net.add(Cast(dtype), value)


def number(net: Network, scalar: Scalar, dtype: torch.dtype, rank: int = 0) -> Value:
    """A constant ``[1] * rank``."""
    return net.constant(torch.full((1,) * rank, scalar, dtype=dtype))


def sized(net: Network, size: Size, dtype: torch.dtype, rank: int = 0) -> Value:
    """A size as a tensor ``[1] * rank`` of ``dtype``."""
    if isinstance(size, int):
        return number(net, size, dtype, rank)
    return cast(net, reshape(net, net.size_tensor((size,)), (1,) * rank), dtype)


def operand(net: Network, item: Operand, dtype: torch.dtype) -> Value:
    """A tensor or number in ``dtype``."""
    if isinstance(item, Value):
        return cast(net, item, dtype)
    if isinstance(item, sympy.Expr):
        return sized(net, item, dtype)
    return number(net, item, dtype)


def promoted(left: Operand, right: Operand) -> torch.dtype:
    """The dtype in which PyTorch computes with both operands."""
    return torch.result_type(_example(left), _example(right))


def _example(item: Operand) -> torch.Tensor | Scalar:
    """Something that promotes as the operand: rank 0 stays rank 0, numbers stay numbers."""
    if isinstance(item, Value):
        return torch.empty((0,) * item.rank, dtype=item.dtype)
    return 1 if isinstance(item, sympy.Expr) else item


def compute_dtype(dtype: torch.dtype, *items: Operand) -> torch.dtype:
    """``dtype``, or float32 where PyTorch keeps a number of the call in float32 that a half dtype cannot hold."""
    if dtype not in HALVES:
        return dtype
    exact = all(isinstance(item, Value) or (isinstance(item, (int, float)) and _is_exact(item, dtype)) for item in items)
    return dtype if exact else torch.float32


def _is_exact(scalar: Scalar, dtype: torch.dtype) -> bool:
    rounded = float(torch.tensor(float(scalar), dtype=torch.float64).to(dtype))
    return rounded == float(scalar) or scalar != scalar


def elementwise(net: Network, op: ElementwiseOp, left: Value, right: Value) -> Value:
    """Operands of one dtype and any ranks."""
    rank = max(left.rank, right.rank)
    return net.add(Elementwise(op), with_rank(net, left, rank), with_rank(net, right, rank))


def add(net: Network, left: Value, right: Value) -> Value:
    """``left + right``."""
    return elementwise(net, ElementwiseOp.SUM, left, right)


def sub(net: Network, left: Value, right: Value) -> Value:
    """``left - right``."""
    return elementwise(net, ElementwiseOp.SUB, left, right)


def mul(net: Network, left: Value, right: Value) -> Value:
    """``left * right``."""
    return elementwise(net, ElementwiseOp.PROD, left, right)


def div(net: Network, left: Value, right: Value) -> Value:
    """``left / right``; integers truncate."""
    return elementwise(net, ElementwiseOp.DIV, left, right)


def equal(net: Network, left: Value, right: Value) -> Value:
    """``left == right``."""
    return elementwise(net, ElementwiseOp.EQUAL, left, right)


def less(net: Network, left: Value, right: Value) -> Value:
    """``left < right``."""
    return elementwise(net, ElementwiseOp.LESS, left, right)


def unary(net: Network, op: UnaryOp, value: Value) -> Value:
    """A function of each element."""
    return net.add(Unary(op), value)


def negated(net: Network, condition: Value) -> Value:
    """Logical not."""
    return net.add(Unary(UnaryOp.NOT), condition)


def select(net: Network, condition: Value, then: Value, otherwise: Value) -> Value:
    """``then`` where ``condition``, else ``otherwise``; any ranks."""
    rank = max(condition.rank, then.rank, otherwise.rank)
    return net.add(Select(), *(with_rank(net, value, rank) for value in (condition, then, otherwise)))


def activation(net: Network, value: Value, kind: ActivationKind, alpha: float = 0.0, beta: float = 0.0) -> Value:
    """An activation layer, of any rank."""
    return net.add(Activation(kind, alpha, beta), value)


def truncate(net: Network, value: Value) -> Value:
    """Rounds floats towards zero."""
    below = less(net, value, number(net, 0, value.dtype, value.rank))
    return select(net, below, unary(net, UnaryOp.CEIL, value), unary(net, UnaryOp.FLOOR, value))


def as_bool(net: Network, value: Value) -> Value:
    """Whether each element is not zero; NaN is not."""
    return value if value.dtype is torch.bool else negated(net, equal(net, value, number(net, 0, value.dtype, value.rank)))
