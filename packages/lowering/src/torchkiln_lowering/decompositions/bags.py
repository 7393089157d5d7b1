"""Sums, means and maxima of bags of embeddings, in as many calls for any number of bags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torchkiln_core.call import OpCall
from torchkiln_core.rejection import Requires
from torchkiln_lowering.decompositions.accumulate import MAX_COMPARED, at_most, count
from torchkiln_lowering.decompositions.numbers import number_like
from torchkiln_lowering.decompositions.precision import FLOATING, as_dtype, widened
from torchkiln_lowering.decompositions.table import ONLY_FIRST, Decomposition

aten = torch.ops.aten
_SUM, _MEAN, _MAX = range(3)


def embedding_bag(  # noqa: PLR0913 -- ATen's signature
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Any, None, None, None]:
    """``_embedding_bag``: ``[V, D], int [N], int [B] -> [B, D]``, its first result only; an empty bag gives zeros.

    Every bag compares its range with all positions and reduces those inside: a row of another bag adds nothing, whatever it holds.
    Source: ATen/native/EmbeddingBag.cpp.
    """
    members = _members(indices, as_dtype(offsets, torch.int64), include_last_offset)
    if padding_idx >= 0:
        members = aten.logical_and.default(members, aten.ne.Scalar(indices, padding_idx))
    rows = widened(aten.index_select.default(weight, 0, indices))
    if per_sample_weights is not None:
        rows = aten.mul.Tensor(rows, aten.unsqueeze.default(widened(per_sample_weights), 1))
    inside, spread = aten.unsqueeze.default(members, -1), aten.unsqueeze.default(rows, 0)
    if mode == _MAX:
        out = _largest(members, inside, rows)
    else:
        zero = number_like(0, rows)
        out = aten.sum.dim_IntList(aten.where.self(inside, spread, zero), [1])
    if mode == _MEAN:
        number = aten.sum.dim_IntList(as_dtype(members, rows.dtype), [1], True)
        out = aten.div.Tensor(out, aten.clamp_min.default(number, 1))
    return as_dtype(out, weight.dtype), None, None, None


def _members(indices: torch.Tensor, offsets: torch.Tensor, include_last_offset: bool) -> Any:
    """Which positions ``[N]`` belong to which bag: bool ``[B, N]``."""
    total = indices.shape[0]
    if include_last_offset:
        bags = offsets.shape[0] - 1
        starts, ends = aten.slice.Tensor(offsets, 0, 0, bags), aten.slice.Tensor(offsets, 0, 1, bags + 1)
    else:
        starts = offsets
        ends = aten.cat.default([aten.slice.Tensor(offsets, 0, 1, offsets.shape[0]), _filled(offsets, total)])
    place = aten.unsqueeze.default(aten.arange.default(total, dtype=torch.int64, device=indices.device), 0)
    first, last = (aten.unsqueeze.default(edge, 1) for edge in (starts, ends))
    return aten.logical_and.default(aten.ge.Tensor(place, first), aten.lt.Tensor(place, last))


def _filled(like: torch.Tensor, value: Any) -> Any:
    """``value`` as ``[1]``; it may be a symbolic size."""
    return aten.add.Scalar(aten.full.default([1], 0, dtype=torch.int64, device=like.device), value)


def _largest(members: torch.Tensor, inside: torch.Tensor, rows: torch.Tensor) -> Any:
    """The maximum of each bag as eager's loop finds it: NaN stays where it comes first, and is passed over later."""
    spread = aten.unsqueeze.default(rows, 0)
    numbers = aten.logical_and.default(inside, aten.eq.Tensor(spread, spread))
    lowest = number_like(float("-inf"), rows)
    out = aten.amax.default(aten.where.self(numbers, spread, lowest), [1])
    place = aten.unsqueeze.default(aten.arange.default(rows.shape[0], dtype=torch.int64, device=rows.device), 0)
    nowhere = aten.add.Scalar(aten.full_like.default(place, 0), rows.shape[0] - 1)
    first = aten.index_select.default(rows, 0, aten.amin.default(aten.where.self(members, place, nowhere), [1]))
    out = aten.where.self(aten.ne.Tensor(first, first), first, out)
    count_of = aten.sum.dim_IntList(as_dtype(members, torch.int64), [1], True)
    return aten.where.self(aten.gt.Scalar(count_of, 0), out, number_like(0, rows))


def _has_row(call: OpCall) -> bool:
    indices = call.arguments["indices"].meta["val"]
    return indices.dim() == 1 and statically_known_true(indices.shape[0] > 0)


def _compared(call: OpCall) -> float:
    weight, indices, offsets = (call.arguments[name].meta["val"] for name in ("weight", "indices", "offsets"))
    return count([offsets.shape[0], indices.shape[0], weight.shape[1]])


_SUMS = (
    FLOATING,
    ONLY_FIRST,
    Requires("a row of indices that is known not to be empty", _has_row),
    at_most(MAX_COMPARED, "elements of all bags, each with room for all indices", _compared),
)

BAGS: dict[Callable[..., Any], Decomposition] = {
    target: Decomposition(embedding_bag, limits=_SUMS) for target in (aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
}
