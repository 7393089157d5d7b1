"""The first elements in order, with NaN as the largest of all, where PyTorch has it."""

from __future__ import annotations

import math

import torch

from torchkiln_converters.support import FLOATS
from torchkiln_converters.writing.extremes import is_nan
from torchkiln_converters.writing.values import HALVES, cast, equal, less, number, select
from torchkiln_core import Network, Value
from torchkiln_core.layers import Activation, ActivationKind, Concatenation, Gather, GatherMode, TopK, TopKOp

MAX_K = 3840
"""The most elements that a TopK layer returns."""
_BEYOND_HALVES = 3.4e38
"""Above every finite half, below the largest float32."""
_LARGEST = torch.finfo(torch.float32).max


def top(net: Network, op: TopKOp, value: Value, k: int, axis: int) -> tuple[Value, Value]:
    """Values and int64 indices of the first ``k`` in order, lower indices first among equals; NaN is the largest.

    The order of a TopK layer with NaN is not PyTorch's, so the index of no NaN is taken from one.
    """
    if value.dtype not in FLOATS:
        values, indices = net.add_many(TopK(op, k, axis), value)
    elif value.dtype in HALVES:
        values, indices = _halves(net, op, value, (k, axis), _LARGEST)
    else:
        values, indices = _several(net, op, value, k, axis)
    return values, cast(net, indices, torch.int64)


def best(net: Network, op: TopKOp, value: Value, axis: int) -> tuple[Value, Value]:
    """Value and int64 index of the first largest or smallest, or of the first NaN where there is one; the dimension stays, of size 1."""
    if value.dtype not in FLOATS:
        values, indices = net.add_many(TopK(op, 1, axis), value)
    elif value.dtype in HALVES:
        values, indices = _halves(net, op, value, (1, axis), _LARGEST if op is TopKOp.MAX else -_LARGEST)
    else:
        values, indices = _one(net, op, value, axis)
    return values, cast(net, indices, torch.int64)


def _halves(net: Network, op: TopKOp, value: Value, place: tuple[int, int], of_nan: float) -> tuple[Value, Value]:
    """float32 has room for NaN: finite numbers beyond all halves stand for infinity and NaN. ``place`` is the number and the axis."""
    k, axis = place
    clipped = net.add(Activation(ActivationKind.CLIP, -_BEYOND_HALVES, _BEYOND_HALVES), cast(net, value, torch.float32))
    key = select(net, is_nan(net, value), number(net, of_nan, torch.float32, value.rank), clipped)
    _, indices = net.add_many(TopK(op, k, axis), key)
    return net.add(Gather(GatherMode.ELEMENT, axis), value, indices), indices


def _one(net: Network, op: TopKOp, value: Value, axis: int) -> tuple[Value, Value]:
    values, indices = net.add_many(TopK(op, 1, axis), value)
    flags, first = net.add_many(TopK(TopKOp.MAX, 1, axis), cast(net, is_nan(net, value), torch.int32))
    poisoned = cast(net, flags, torch.bool)
    return select(net, poisoned, number(net, math.nan, value.dtype, value.rank), values), select(net, poisoned, first, indices)


def _several(net: Network, op: TopKOp, value: Value, k: int, axis: int) -> tuple[Value, Value]:
    """Merges the order below infinity with that of infinities and NaN, which only a class tells apart."""
    infinity = number(net, math.inf, value.dtype, value.rank)
    found = is_nan(net, value)
    ordered, below = net.add_many(TopK(op, k, axis), select(net, found, infinity, value))
    of_nan, of_infinity = (2, 1) if op is TopKOp.MAX else (1, 2)
    none, nan_class, infinity_class = (number(net, item, torch.int32, value.rank) for item in (0, of_nan, of_infinity))
    classes = select(net, found, nan_class, select(net, equal(net, value, infinity), infinity_class, none))
    flags, beyond = net.add_many(TopK(TopKOp.MAX, k, axis), classes)
    parts = [(cast(net, less(net, none, flags), torch.int32), beyond), (cast(net, less(net, ordered, infinity), torch.int32), below)]
    if op is TopKOp.MIN:
        parts.reverse()
    valid, candidates = (net.add(Concatenation(axis), *items) for items in zip(*parts, strict=True))
    _, places = net.add_many(TopK(TopKOp.MAX, k, axis), valid)
    indices = net.add(Gather(GatherMode.ELEMENT, axis), candidates, places)
    return net.add(Gather(GatherMode.ELEMENT, axis), value, indices), indices
