"""Operators that place elements by index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from torchkiln_converters.arrival import Operand
from torchkiln_converters.converter import converter
from torchkiln_converters.ops.indexing import coordinates_of, cut
from torchkiln_converters.support import INTEGERS, NUMBERS, Equals, Support, fake
from torchkiln_converters.writing.shapes import axis_of, expand, with_rank
from torchkiln_converters.writing.values import cast, operand
from torchkiln_core import Network, OpCall, Requires, Value
from torchkiln_core.layers import Scatter, ScatterMode
from torchkiln_core.size import sizes_of

aten = torch.ops.aten
_SCATTER = Support(dtypes=NUMBERS, ranks=range(1, 9), arguments={"index": INTEGERS})


@converter(aten.scatter.src, replace(_SCATTER, unordered=lambda call: True))
def scatter_src(net: Network, self: Value, dim: int, index: Value, src: Value) -> Value:
    """``scatter.src(Tensor self, int dim, Tensor index, Tensor src)``; only the part of ``src`` under the index is read."""
    index, src = (with_rank(net, item, self.rank) for item in (index, src))
    return net.add(Scatter(ScatterMode.ELEMENT, axis_of(dim, self.rank)), self, index, cut(net, src, index.shape))


@converter(aten.scatter.value, _SCATTER)
def scatter_value(net: Network, self: Value, dim: int, index: Value, value: Operand) -> Value:
    """``scatter.value(Tensor self, int dim, Tensor index, Scalar value)``."""
    index = with_rank(net, index, self.rank)
    updates = expand(net, operand(net, value, self.dtype), index.shape)
    return net.add(Scatter(ScatterMode.ELEMENT, axis_of(dim, self.rank)), self, index, updates)


def _leading(call: OpCall) -> bool:
    """No index is left out before another one."""
    given = [item is not None for item in call.arguments["indices"]]
    return bool(given) and given == sorted(given, reverse=True) and given[0]


def _several_values(call: OpCall) -> bool:
    """More than one value is written, so it matters which write comes last."""
    return any(size != 1 for size in sizes_of(fake(call, "values").shape))


@converter(
    aten.index_put.default,
    Support(
        dtypes=NUMBERS,
        ranks=range(1, 9),
        arguments={"indices": INTEGERS},
        rules=(Equals("accumulate", False), Requires("indices of the leading dimensions", _leading)),
        unordered=_several_values,
    ),
)
def index_put(net: Network, self: Value, indices: Sequence[Value | None], values: Value) -> Value:
    """``index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False)``. Of equal indices either may win."""
    coordinates = coordinates_of(net, self, indices)
    depth = sum(item is not None for item in indices)
    updates = expand(net, cast(net, values, self.dtype), (*coordinates.shape[:-1], *self.shape[depth:]))
    return net.add(Scatter(ScatterMode.ND), self, coordinates, updates)
