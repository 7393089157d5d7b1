"""Windows along the axes of a tensor, read by tables of positions or, where they tile an axis, by a reshape."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

aten = torch.ops.aten

Table: TypeAlias = Callable[[torch.device], Any]
"""Makes the positions that windows read, int64 ``[O, K]``; windows shorter than ``K`` repeat one of their own."""
_NOWHERE = -(2**31)
"""Below minus the number of any element of an engine's tensors."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Windows along one axis.

    Attributes:
        size: Elements of the axis; symbolic only where ``table`` is ``None``.
        out: Windows, ``O``.
        taps: Elements of the longest window, ``K``.
        table: Their positions; ``None`` where the windows tile the axis in order.
    """

    size: Any
    out: Any
    taps: Any
    table: Table | None = None


def arange(size: Any, device: torch.device) -> Any:
    """``0, 1, ..``, int64 ``[size]``."""
    return aten.arange.default(size, dtype=torch.int64, device=device)


def column(x: torch.Tensor) -> Any:
    """``[O] -> [O, 1]``."""
    return aten.unsqueeze.default(x, 1)


def floor_div(x: torch.Tensor, divisor: int) -> Any:
    """Whole quotients of integers ``[*]``, rounded down."""
    return aten.div.Tensor_mode(x, aten.full_like.default(x, divisor), rounding_mode="floor")


def windowed(x: torch.Tensor, dim: int, axis: Axis) -> Any:
    """``[*, size, *] -> [*, O, K, *]``."""
    shape = [*x.shape[:dim], axis.out, axis.taps, *x.shape[dim + 1 :]]
    if axis.table is None:
        return aten.reshape.default(x, shape)
    return aten.reshape.default(aten.index_select.default(x, dim, aten.reshape.default(axis.table(x.device), [-1])), shape)


def along(table: torch.Tensor, dim: int, rank: int) -> Any:
    """``[O, K]``, or ``[O, 1]``, as it meets ``[*, O, K, *]`` of that rank, whose ``O`` is dimension ``dim``."""
    return aten.reshape.default(table, [*table.shape, *(1,) * (rank - dim - 2)])


def _positions(axis: Axis, device: torch.device) -> Any:
    if axis.table is not None:
        return axis.table(device)
    return aten.reshape.default(arange(axis.size, device), [axis.out, axis.taps])


def largest(x: torch.Tensor, axes: Sequence[Axis]) -> tuple[Any, Any]:
    """The largest element of each window ``[*, O1, .., On]`` and its number in its plane ``[size1, .., sizen]``, row by row.

    Of equal elements the first counts, of several NaN the last: eager's loops take an element that is larger than those before, or NaN.
    An axis at a time, the last one first, since windows are products of intervals: the row of a plane decides before the column.
    """
    first = x.dim() - len(axes)
    place: Any = None
    for number in reversed(range(len(axes))):
        axis, dim = axes[number], first + number
        wide = windowed(x, dim, axis)
        step = math.prod(item.size for item in axes[number + 1 :])
        own = along(aten.mul.Scalar(_positions(axis, x.device), step), dim, wide.dim())
        place = own if place is None else aten.add.Tensor(windowed(place, dim, axis), own)
        x = aten.amax.default(wide, [dim + 1])
        place = _place_of(aten.unsqueeze.default(x, dim + 1), wide, place, dim + 1)
    return x, place


def _place_of(peak: torch.Tensor, wide: torch.Tensor, place: torch.Tensor, dim: int) -> Any:
    """The place of the peak in each window, by one maximum: NaN counts by its place, what equals the peak by minus that."""
    counted = aten.add.Scalar(place, 1)
    nowhere = aten.full.default([], _NOWHERE, dtype=torch.int64, device=wide.device)
    score = aten.where.self(aten.eq.Tensor(wide, peak), aten.neg.default(counted), nowhere)
    if wide.dtype.is_floating_point:
        score = aten.where.self(aten.ne.Tensor(wide, wide), counted, score)
    return aten.sub.Scalar(aten.abs.default(aten.amax.default(score, [dim])), 1)
