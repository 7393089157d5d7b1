"""Operators that pick elements: slices, gathers, embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch
from torch.utils._sympy.functions import Max, Min

from torchkiln_converters.arrival import Result
from torchkiln_converters.converter import converter
from torchkiln_converters.support import INTEGERS, Support
from torchkiln_converters.writing.shapes import axis_of, expand, permute, reshape, squeeze, unsqueeze, window, with_rank
from torchkiln_converters.writing.values import add, cast, less, number, select, sized
from torchkiln_core import Network, Size, Value
from torchkiln_core.inference import statically_equal
from torchkiln_core.layers import Concatenation, Gather, GatherMode

aten = torch.ops.aten


def known(net: Network, relation: sympy.Basic | bool) -> bool:
    """Whether a relation between sizes holds for every value of their symbols."""
    shape_env = net.fake_mode.shape_env
    if isinstance(relation, bool) or relation in (sympy.true, sympy.false) or shape_env is None:
        return bool(relation)
    return bool(shape_env._maybe_evaluate_static(relation) == sympy.true)


def bounded(net: Network, index: Size, extent: Size) -> Size:
    """A slice's start or end in ``[0, extent]``, counted from the end when negative."""
    if known(net, sympy.Lt(index, 0)):
        index = index + extent
    if isinstance(index, int) and isinstance(extent, int):
        return max(0, min(index, extent))
    if not known(net, sympy.Ge(index, 0)):
        index = Max(0, index)
    return index if known(net, sympy.Le(index, extent)) else Min(index, extent)


@converter(aten.slice.Tensor, Support(ignores=("end",)))
def slice_(net: Network, self: Value, dim: int, start: Size | None, step: int, result: Result) -> Value:
    """``slice.Tensor(Tensor self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1)``."""
    axis = axis_of(dim, self.rank)
    first = bounded(net, 0 if start is None else start, self.shape[axis])
    starts: list[Size] = [0] * self.rank
    starts[axis] = first
    if first == 0 and step == 1 and statically_equal(self.shape[axis], result.shape[axis], net.fake_mode):
        return self
    return window(net, self, starts, result.shape, [step if at == axis else 1 for at in range(self.rank)])


@converter(aten.select.int)
def select_int(net: Network, self: Value, dim: int, index: Size) -> Value:
    """``select.int(Tensor self, int dim, SymInt index)``."""
    axis = axis_of(dim, self.rank)
    return pick(net, self, axis, index)


def pick(net: Network, value: Value, axis: int, index: Size) -> Value:
    """Element ``index`` of a dimension, which goes away; counted from the end when negative."""
    if known(net, sympy.Lt(index, 0)):
        index = index + value.shape[axis]
    if isinstance(index, int) and value.is_static:  # what a slice reads is known when the engine is built
        starts, sizes = [0] * value.rank, list(value.shape)
        starts[axis], sizes[axis] = index, 1
        return squeeze(net, window(net, value, starts, sizes, (1,) * value.rank), axis)
    at = number(net, index, torch.int64) if isinstance(index, int) else sized(net, index, torch.int64)
    return net.add(Gather(GatherMode.DEFAULT, axis), value, at)


@converter(aten.embedding.default, Support(arguments={"indices": INTEGERS}, ignores=("padding_idx", "scale_grad_by_freq", "sparse")))
def embedding(net: Network, weight: Value, indices: Value) -> Value:
    """``embedding(Tensor weight, Tensor indices, ...)``: ``[N, D], int [*] -> [*, D]``."""
    return net.add(Gather(GatherMode.DEFAULT, 0), weight, indices)


@converter(aten.index_select.default, Support(ranks=range(1, 9), arguments={"index": INTEGERS}))
def index_select(net: Network, self: Value, dim: int, index: Value) -> Value:
    """``index_select(Tensor self, int dim, Tensor index)``."""
    flat = index if index.rank == 1 else reshape(net, index, (1,))
    return net.add(Gather(GatherMode.DEFAULT, axis_of(dim, self.rank)), self, flat)


@converter(aten.gather.default, Support(ranks=range(1, 9), arguments={"index": INTEGERS}, ignores=("sparse_grad",)))
def gather(net: Network, self: Value, dim: int, index: Value) -> Value:
    """``gather(Tensor self, int dim, Tensor index, *, bool sparse_grad=False)``; the data is cut to the extent of the index elsewhere.

    A vector takes an index without dimensions too.
    """
    axis, whole = axis_of(dim, self.rank), with_rank(net, index, self.rank)
    wanted = tuple(have if at == axis else want for at, (have, want) in enumerate(zip(self.shape, whole.shape, strict=True)))
    picked = net.add(Gather(GatherMode.ELEMENT, axis), cut(net, self, wanted), whole)
    return picked if whole is index else reshape(net, picked, index.shape)


def cut(net: Network, value: Value, shape: Sequence[Size]) -> Value:
    """The leading part of a value in every dimension."""
    if all(statically_equal(have, want, net.fake_mode) for have, want in zip(value.shape, shape, strict=True)):
        return value
    return window(net, value, (0,) * value.rank, shape, (1,) * value.rank)


def from_start(net: Network, index: Value, extent: Size) -> Value:
    """Indices in ``[0, extent)``; negative ones count from the end. Constants are folded."""
    if index.constant is not None and (index.constant.numel() == 0 or int(index.constant.min()) >= 0):
        return index
    negative = less(net, index, number(net, 0, index.dtype, index.rank))
    return select(net, negative, add(net, index, sized(net, extent, index.dtype, index.rank)), index)


@converter(aten.index.Tensor, Support(ranks=range(1, 9), arguments={"indices": INTEGERS}))
def index(net: Network, self: Value, indices: Sequence[Value | None], result: Result) -> Value:
    """``index.Tensor(Tensor self, Tensor?[] indices)`` with integer indices, which may be negative. Masks have no layer."""
    axes = [axis for axis, item in enumerate(indices) if item is not None]
    if len(axes) == 1:
        (axis,) = axes
        (single,) = (item for item in indices if item is not None)
        return net.add(Gather(GatherMode.DEFAULT, axis), self, from_start(net, single, self.shape[axis]))
    coordinates = coordinates_of(net, self, indices)
    rest = [axis for axis in range(self.rank) if axis not in axes]
    picked = net.add(Gather(GatherMode.ND), permute(net, self, axes + rest), coordinates)
    if axes != list(range(axes[0], axes[-1] + 1)):
        return picked
    width, before = coordinates.rank - 1, axes[0]
    order = [*range(width, width + before), *range(width), *range(width + before, picked.rank)]
    return permute(net, picked, order)


def coordinates_of(net: Network, data: Value, indices: Sequence[Value | None]) -> Value:
    """Integers ``[*, n]``: the ``n`` indices, broadcast to one shape, next to each other."""
    given = [(axis, item) for axis, item in enumerate(indices) if item is not None]
    shape = sizes_broadcast(net, [item for _, item in given])
    parts = []
    for axis, item in given:
        wide = cast(net, from_start(net, item, data.shape[axis]), torch.int64)
        parts.append(unsqueeze(net, expand(net, wide, shape), len(shape)))
    return net.add(Concatenation(len(shape)), *parts)


def sizes_broadcast(net: Network, values: Sequence[Value]) -> tuple[Size, ...]:
    """The shape that values broadcast to."""
    rank = max(value.rank for value in values)
    shape: list[Size] = [1] * rank
    for value in values:
        for at, size in enumerate(value.shape, rank - value.rank):
            if shape[at] == 1:
                shape[at] = size
    return tuple(shape)
