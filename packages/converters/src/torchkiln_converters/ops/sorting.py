"""Largest elements, and order."""

from __future__ import annotations

import torch

from torchkiln_converters.arrival import Result
from torchkiln_converters.converter import Converter, converter
from torchkiln_converters.support import NUMBERS, Support, fake
from torchkiln_converters.writing.order import MAX_K, best, top
from torchkiln_converters.writing.shapes import axis_of, product, reshape, squeeze
from torchkiln_converters.writing.values import number
from torchkiln_core import Network, OpCall, Requires, Value
from torchkiln_core.layers import TopKOp

aten = torch.ops.aten


def _argument_of(name: str, op: TopKOp) -> Converter[...]:
    def function(net: Network, self: Value, dim: int | None, keepdim: bool, result: Result) -> Value:
        if self.rank == 0:
            return number(net, 0, torch.int64)
        flat = reshape(net, self, (product(self.shape),)) if dim is None else self
        _, indices = best(net, op, flat, 0 if dim is None else axis_of(dim, self.rank))
        return reshape(net, indices, result.shape)

    function.__name__ = name
    return converter(getattr(aten, name).default, Support(dtypes=NUMBERS))(function)


def _extreme_of(name: str, op: TopKOp) -> Converter[...]:
    def function(net: Network, self: Value, dim: int, keepdim: bool) -> tuple[Value, Value]:
        if self.rank == 0:
            return self, number(net, 0, torch.int64)
        axis = axis_of(dim, self.rank)
        values, indices = best(net, op, self, axis)
        return (values, indices) if keepdim else (squeeze(net, values, axis), squeeze(net, indices, axis))

    function.__name__ = f"{name}_dim"
    return converter(getattr(aten, name).dim, Support(dtypes=NUMBERS))(function)


ARGUMENTS = (_argument_of("argmax", TopKOp.MAX), _argument_of("argmin", TopKOp.MIN))
"""Indices of the first largest or smallest element."""
EXTREMES = (_extreme_of("max", TopKOp.MAX), _extreme_of("min", TopKOp.MIN))
"""The first largest or smallest element along a dimension, with its index."""


def _k_in_range(call: OpCall) -> bool:
    k = call.arguments["k"]
    return isinstance(k, int) and 1 <= k <= MAX_K


@converter(
    aten.topk.default, Support(dtypes=NUMBERS, ranks=range(1, 9), rules=(Requires(f"1 <= k <= {MAX_K}", _k_in_range),), ignores=("sorted",))
)
def topk(net: Network, self: Value, k: int, dim: int, largest: bool) -> tuple[Value, Value]:
    """``topk(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True)``. PyTorch leaves the order of equal elements open."""
    return top(net, TopKOp.MAX if largest else TopKOp.MIN, self, k, axis_of(dim, self.rank))


def _short(call: OpCall) -> bool:
    tensor = fake(call, "self")
    size = 1 if tensor.dim() == 0 else tensor.shape[call.arguments["dim"]]
    return isinstance(size, int) and 1 <= size <= MAX_K


_SORT = Support(dtypes=NUMBERS, rules=(Requires(f"a static dimension of 1 to {MAX_K} elements", _short, "static"),))


def _sorted(net: Network, value: Value, dim: int, descending: bool) -> tuple[Value, Value]:
    if value.rank == 0:
        return value, number(net, 0, torch.int64)
    axis = axis_of(dim, value.rank)
    size = value.shape[axis]
    if not isinstance(size, int):
        raise TypeError(f"the number of elements to sort is symbolic: {size}")
    return top(net, TopKOp.MAX if descending else TopKOp.MIN, value, size, axis)


@converter(aten.sort.default, _SORT)
def sort(net: Network, self: Value, dim: int, descending: bool) -> tuple[Value, Value]:
    """``sort(Tensor self, int dim=-1, bool descending=False)``."""
    return _sorted(net, self, dim, descending)


@converter(aten.sort.stable, Support(dtypes=NUMBERS, rules=_SORT.rules, ignores=("stable",)))
def sort_stable(net: Network, self: Value, dim: int, descending: bool) -> tuple[Value, Value]:
    """``sort.stable(Tensor self, *, bool? stable, int dim=-1, bool descending=False)``; the layer always is.

    NaN is last. Of PyTorch's kernels one differs: that for bfloat16 on a GPU has NaN first (2.11).
    """
    return _sorted(net, self, dim, descending)
