"""Operators that make tensors."""

from __future__ import annotations

import sympy
import torch

from torchkiln_converters.arrival import Operand, Result, Scalar
from torchkiln_converters.converter import converter
from torchkiln_converters.support import NUMBERS, Support
from torchkiln_converters.writing.positions import positions
from torchkiln_converters.writing.shapes import expand
from torchkiln_converters.writing.values import add, cast, mul, number, operand, sized
from torchkiln_core import Network, Size, Value

aten = torch.ops.aten
_SHAPED = ("size", "dtype")


def filled(net: Network, scalar: Operand, result: Result) -> Value:
    """A tensor of one number: a constant of size 1, expanded."""
    rank = len(result.shape)
    one = number(net, scalar, result.dtype, rank) if isinstance(scalar, (int, float)) else operand(net, scalar, result.dtype)
    return expand(net, one, result.shape)


@converter(aten.full.default, Support(ignores=_SHAPED))
def full(net: Network, fill_value: Operand, result: Result) -> Value:
    """``full(SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, ...)``."""
    return filled(net, fill_value, result)


@converter(aten.full_like.default, Support(ignores=("self", "dtype")))
def full_like(net: Network, fill_value: Operand, result: Result) -> Value:
    """``full_like(Tensor self, Scalar fill_value, *, ScalarType? dtype=None, ...)``."""
    return filled(net, fill_value, result)


@converter(aten.new_full.default, Support(ignores=("self", *_SHAPED)))
def new_full(net: Network, fill_value: Operand, result: Result) -> Value:
    """``new_full(Tensor self, SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, ...)``."""
    return filled(net, fill_value, result)


@converter((aten.zeros.default, aten.empty.memory_format), Support(ignores=_SHAPED))
def zeros(net: Network, result: Result) -> Value:
    """``zeros(SymInt[] size, *, ScalarType? dtype=None, ...)``; ``empty`` may hold anything, so it holds zeros."""
    return filled(net, 0, result)


@converter(aten.ones.default, Support(ignores=_SHAPED))
def ones(net: Network, result: Result) -> Value:
    """``ones(SymInt[] size, *, ScalarType? dtype=None, ...)``."""
    return filled(net, 1, result)


@converter((aten.zeros_like.default, aten.empty_like.default), Support(ignores=("self", "dtype")))
def zeros_like(net: Network, result: Result) -> Value:
    """``zeros_like(Tensor self, *, ScalarType? dtype=None, ...)``."""
    return filled(net, 0, result)


@converter(aten.ones_like.default, Support(ignores=("self", "dtype")))
def ones_like(net: Network, result: Result) -> Value:
    """``ones_like(Tensor self, *, ScalarType? dtype=None, ...)``."""
    return filled(net, 1, result)


@converter((aten.new_zeros.default, aten.new_empty.default), Support(ignores=("self", *_SHAPED)))
def new_zeros(net: Network, result: Result) -> Value:
    """``new_zeros(Tensor self, SymInt[] size, *, ScalarType? dtype=None, ...)``."""
    return filled(net, 0, result)


@converter(aten.new_ones.default, Support(ignores=("self", *_SHAPED)))
def new_ones(net: Network, result: Result) -> Value:
    """``new_ones(Tensor self, SymInt[] size, *, ScalarType? dtype=None, ...)``."""
    return filled(net, 1, result)


@converter(aten.scalar_tensor.default, Support(ignores=("dtype",)))
def scalar_tensor(net: Network, s: Operand, result: Result) -> Value:
    """``scalar_tensor(Scalar s, *, ScalarType? dtype=None, ...)``."""
    return filled(net, s, result)


@converter((aten.fill.Scalar, aten.fill.Tensor), Support(ignores=("self",)))
def fill(net: Network, value: Operand, result: Result) -> Value:
    """``fill.Scalar(Tensor self, Scalar value)``."""
    return filled(net, value, result)


_ARANGE = Support(results=NUMBERS, ignores=("dtype", "end"))


@converter(aten.arange.start_step, _ARANGE)
def arange_start_step(net: Network, start: Size, step: Scalar, result: Result) -> Value:
    """``arange.start_step(Scalar start, Scalar end, Scalar step=1, *, ScalarType? dtype=None, ...)``."""
    return _range(net, start, step, result)


@converter(aten.arange.start, _ARANGE)
def arange_start(net: Network, start: Size, result: Result) -> Value:
    """``arange.start(Scalar start, Scalar end, *, ScalarType? dtype=None, ...)``."""
    return _range(net, start, 1, result)


@converter(aten.arange.default, _ARANGE)
def arange(net: Network, result: Result) -> Value:
    """``arange(Scalar end, *, ScalarType? dtype=None, ...)``."""
    return _range(net, 0, 1, result)


def _range(net: Network, start: Size | Scalar, step: Scalar, result: Result) -> Value:
    """``start + i * step``; floats in float32, where each element is one product and one sum, as in PyTorch."""
    (count,) = result.shape
    dtype = torch.float32 if result.dtype.is_floating_point else result.dtype
    if isinstance(start, sympy.Expr):
        steps = mul(net, positions(net, count, dtype), number(net, step, dtype, 1))
        return cast(net, add(net, steps, sized(net, start, dtype, 1)), result.dtype)
    return cast(net, positions(net, count, dtype, start, step), result.dtype)
