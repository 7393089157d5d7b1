"""Reductions."""

from __future__ import annotations

import math

import torch

from torchkiln_converters.arrival import Result, Scalar
from torchkiln_converters.converter import Converter, converter
from torchkiln_converters.support import BOOLS, FLOATS, NUMBERS, Support
from torchkiln_converters.writing.extremes import reduce_extreme
from torchkiln_converters.writing.shapes import axes_of, axis_of, product
from torchkiln_converters.writing.values import HALVES, as_bool, cast, div, elementwise, mul, number, sized, sub, unary
from torchkiln_core import Network, Requires, Value
from torchkiln_core.layers import Cumulative, CumulativeOp, ElementwiseOp, Reduce, ReduceOp, UnaryOp

aten = torch.ops.aten


def reduce(net: Network, op: ReduceOp, value: Value, axes: tuple[int, ...], keepdim: bool) -> Value:
    """A reduce layer; a value of rank 0 is its own result."""
    return net.add(Reduce(op, axes, keepdim), value) if value.rank else value


def summed(net: Network, op: ReduceOp, value: Value, axes: tuple[int, ...], keepdim: bool, result: Result) -> Value:
    """Half dtypes are added up in float32, as PyTorch does."""
    wide = torch.float32 if result.dtype in HALVES else result.dtype
    return cast(net, reduce(net, op, cast(net, value, wide), axes, keepdim), result.dtype)


@converter(aten.sum.dim_IntList, Support(results=NUMBERS, ignores=("dtype",)))
def sum_dim(net: Network, self: Value, dim: tuple[int, ...] | None, keepdim: bool, result: Result) -> Value:
    """``sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None)``."""
    return summed(net, ReduceOp.SUM, self, axes_of(dim, self.rank), keepdim, result)


@converter(aten.sum.default, Support(results=NUMBERS, ignores=("dtype",)))
def sum_all(net: Network, self: Value, result: Result) -> Value:
    """``sum(Tensor self, *, ScalarType? dtype=None)``."""
    return summed(net, ReduceOp.SUM, self, axes_of(None, self.rank), False, result)


@converter(aten.mean.dim, Support(results=FLOATS, ignores=("dtype",)))
def mean_dim(net: Network, self: Value, dim: tuple[int, ...] | None, keepdim: bool, result: Result) -> Value:
    """``mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None)``."""
    return summed(net, ReduceOp.AVG, self, axes_of(dim, self.rank), keepdim, result)


@converter(aten.mean.default, Support(results=FLOATS, ignores=("dtype",)))
def mean_all(net: Network, self: Value, result: Result) -> Value:
    """``mean(Tensor self, *, ScalarType? dtype=None)``."""
    return summed(net, ReduceOp.AVG, self, axes_of(None, self.rank), False, result)


@converter(aten.prod.dim_int, Support(results=NUMBERS, ignores=("dtype",)))
def prod_dim(net: Network, self: Value, dim: int, keepdim: bool, result: Result) -> Value:
    """``prod.dim_int(Tensor self, int dim, bool keepdim=False, *, ScalarType? dtype=None)``."""
    return summed(net, ReduceOp.PROD, self, (axis_of(dim, self.rank),), keepdim, result)


@converter(aten.prod.default, Support(results=NUMBERS, ignores=("dtype",)))
def prod_all(net: Network, self: Value, result: Result) -> Value:
    """``prod(Tensor self, *, ScalarType? dtype=None)``."""
    return summed(net, ReduceOp.PROD, self, axes_of(None, self.rank), False, result)


def _extreme(name: str, op: ReduceOp) -> tuple[Converter[...], Converter[...]]:
    """``amax`` and ``max.default``, or their opposites; NaN where an element is NaN."""

    def over_dims(net: Network, self: Value, dim: tuple[int, ...], keepdim: bool) -> Value:
        return reduce_extreme(net, op, self, axes_of(dim, self.rank), keepdim)

    def over_all(net: Network, self: Value) -> Value:
        return reduce_extreme(net, op, self, axes_of(None, self.rank), False)

    over_dims.__name__, over_all.__name__ = f"a{name}", name
    dims, whole = getattr(aten, f"a{name}").default, getattr(aten, name).default
    return converter(dims, Support(dtypes=NUMBERS))(over_dims), converter(whole, Support(dtypes=NUMBERS))(over_all)


EXTREMES = (*_extreme("max", ReduceOp.MAX), *_extreme("min", ReduceOp.MIN))
"""Largest and smallest elements."""


def _logical(name: str, op: ReduceOp) -> tuple[Converter[...], ...]:
    """``any`` or ``all``, as the sum or product of zeros and ones: of nothing these are 0 and 1, as in PyTorch."""

    def write(net: Network, value: Value, axes: tuple[int, ...], keepdim: bool) -> Value:
        found = as_bool(net, value)
        return cast(net, reduce(net, op, cast(net, found, torch.int32), axes, keepdim), torch.bool)

    def over_all(net: Network, self: Value) -> Value:
        return write(net, self, axes_of(None, self.rank), False)

    def over_dim(net: Network, self: Value, dim: int, keepdim: bool) -> Value:
        return write(net, self, (axis_of(dim, self.rank),), keepdim)

    def over_dims(net: Network, self: Value, dim: tuple[int, ...] | None, keepdim: bool) -> Value:
        if dim == ():  # unlike the other reductions, these two then reduce nothing
            return as_bool(net, self)
        return write(net, self, axes_of(dim, self.rank), keepdim)

    packet = getattr(aten, name)
    functions = ((packet.default, over_all), (packet.dim, over_dim), (packet.dims, over_dims))
    for _, function in functions:
        function.__name__ = name
    return tuple(converter(target, Support(results=BOOLS))(function) for target, function in functions)


LOGICAL = (*_logical("any", ReduceOp.SUM), *_logical("all", ReduceOp.PROD))
"""Whether any or all elements are not zero."""


def variance(net: Network, value: Value, axes: tuple[int, ...], keepdim: bool, correction: Scalar) -> Value:
    """Variance in float32, in two passes; the divisor is not below 0, as in PyTorch."""
    wide = cast(net, value, torch.float32)
    centered = sub(net, wide, reduce(net, ReduceOp.AVG, wide, axes, True))
    total = reduce(net, ReduceOp.SUM, mul(net, centered, centered), axes, keepdim)
    count = product([value.shape[axis] for axis in axes])
    if isinstance(count, int):
        return div(net, total, number(net, max(0, count - correction), torch.float32))
    if correction == 0:
        return div(net, total, sized(net, count, torch.float32))
    lessened = sub(net, sized(net, count, torch.float32), number(net, correction, torch.float32))
    return div(net, total, elementwise(net, ElementwiseOp.MAX, lessened, number(net, 0, torch.float32)))


@converter(aten.var.correction, Support(dtypes=FLOATS))
def var(net: Network, self: Value, dim: tuple[int, ...] | None, correction: Scalar | None, keepdim: bool) -> Value:
    """``var.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False)``."""
    axes = axes_of(dim, self.rank)
    return cast(net, variance(net, self, axes, keepdim, 1 if correction is None else correction), self.dtype)


@converter(aten.std.correction, Support(dtypes=FLOATS))
def std(net: Network, self: Value, dim: tuple[int, ...] | None, correction: Scalar | None, keepdim: bool) -> Value:
    """``std.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False)``."""
    axes = axes_of(dim, self.rank)
    squared = variance(net, self, axes, keepdim, 1 if correction is None else correction)
    return cast(net, unary(net, UnaryOp.SQRT, squared), self.dtype)


@converter(aten.var_mean.correction, Support(dtypes=FLOATS))
def var_mean(net: Network, self: Value, dim: tuple[int, ...] | None, correction: Scalar | None, keepdim: bool) -> tuple[Value, Value]:
    """``var_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False)``."""
    axes = axes_of(dim, self.rank)
    mean = reduce(net, ReduceOp.AVG, cast(net, self, torch.float32), axes, keepdim)
    squared = variance(net, self, axes, keepdim, 1 if correction is None else correction)
    return cast(net, squared, self.dtype), cast(net, mean, self.dtype)


_KNOWN_ORDER = Requires("ord 1, 2, inf or -inf", lambda call: call.arguments["ord"] in (1, 2, math.inf, -math.inf))


@converter(
    aten.linalg_vector_norm.default,
    Support(
        dtypes=FLOATS,
        rules=(_KNOWN_ORDER,),
        ignores=("dtype",),
    ),
)
def vector_norm(net: Network, self: Value, ord: Scalar, dim: tuple[int, ...] | None, keepdim: bool, result: Result) -> Value:
    """``linalg_vector_norm(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None)``, in float32."""
    wide = cast(net, self, torch.float32)
    axes = axes_of(dim, self.rank)
    if ord == 2:
        norm = unary(net, UnaryOp.SQRT, reduce(net, ReduceOp.SUM, mul(net, wide, wide), axes, keepdim))
    elif ord == 1:
        norm = reduce(net, ReduceOp.SUM, unary(net, UnaryOp.ABS, wide), axes, keepdim)
    else:
        norm = reduce_extreme(net, ReduceOp.MAX if ord > 0 else ReduceOp.MIN, unary(net, UnaryOp.ABS, wide), axes, keepdim)
    return cast(net, norm, result.dtype)


@converter(aten.cumsum.default, Support(results=NUMBERS, ignores=("dtype",)))
def cumsum(net: Network, self: Value, dim: int, result: Result) -> Value:
    """``cumsum(Tensor self, int dim, *, ScalarType? dtype=None)``; half dtypes are added up in float32.

    In half dtypes TensorRT-RTX 1.6 still errs as if it rounded partial sums, and PyTorch's kernel for CUDA up to four times as much.
    """
    wide = torch.float32 if result.dtype in HALVES else result.dtype
    value = cast(net, self, wide)
    if value.rank:
        value = net.add(Cumulative(CumulativeOp.SUM, axis_of(dim, value.rank)), value)
    return cast(net, value, result.dtype)
