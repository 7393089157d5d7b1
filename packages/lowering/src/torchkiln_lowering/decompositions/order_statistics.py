"""Medians and other elements by rank, from the smallest or largest in order.

Which of equal elements PyTorch takes, it leaves open: calls whose indices are read stay with it, but for those of one element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torchkiln_core.call import OpCall
from torchkiln_lowering.decompositions.numbers import number_like
from torchkiln_lowering.decompositions.precision import as_dtype, floating
from torchkiln_lowering.decompositions.sorting import MAX_ORDERED, is_merged, reads_values
from torchkiln_lowering.decompositions.table import Decomposition

aten = torch.ops.aten


def _middle(size: int) -> int:
    """The rank of the median, the lower one of two, from 1."""
    return (size - 1) // 2 + 1


def _ranked(x: torch.Tensor, k: int, dim: int) -> Any:
    """The ``k``-th smallest ``[*, 1, *]`` of ``[*, N, *]``, NaN as the largest, counted from the nearer end."""
    size: Any = x.shape[dim]
    if isinstance(size, int) and size - k + 1 < k:
        return aten.slice.Tensor(aten.topk.default(x, size - k + 1, dim, True)[0], dim, size - k, size - k + 1)
    return aten.slice.Tensor(aten.topk.default(x, k, dim, False)[0], dim, k - 1, k)


def _median(x: torch.Tensor, dim: int) -> Any:
    """NaN where there is one. Source: ATen/native/Sorting.cpp."""
    out = _ranked(x, _middle(x.shape[dim]), dim)
    if not x.dtype.is_floating_point:
        return out
    poisoned = aten.any.dim(aten.isnan.default(x), dim, True)
    return aten.where.self(poisoned, number_like(float("nan"), x), out)


def _nanmedian(x: torch.Tensor, dim: int) -> Any:
    """The median of the numbers, which come before NaN; where there are none, the first NaN."""
    if not x.dtype.is_floating_point:
        return _median(x, dim)
    numbers = as_dtype(aten.logical_not.default(aten.isnan.default(x)), torch.int64)
    last = aten.sub.Scalar(aten.sum.dim_IntList(numbers, [dim], True), 1)
    place = aten.clamp_min.default(aten.div.Tensor_mode(last, 2, rounding_mode="floor"), 0)
    return aten.gather.default(aten.topk.default(x, _middle(x.shape[dim]), dim, False)[0], dim, place)


def _over_dimension(middle: Callable[[torch.Tensor, int], Any]) -> Callable[..., Any]:
    def median(self: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
        """The median along ``dim`` of ``[*, N, *]``, and its index where there is but one."""
        return _picked(self, dim, keepdim, middle)

    return median


def _over_all(middle: Callable[[torch.Tensor, int], Any]) -> Callable[..., Any]:
    def median(self: torch.Tensor) -> Any:
        """The median of all elements ``[*] -> []``."""
        return _picked(aten.reshape.default(self, [-1]), 0, False, middle)[0]

    return median


def kthvalue(self: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Any, Any]:
    """``kthvalue`` along ``dim`` of ``[*, N, *]``, and its index where there is but one. Source: ATen/native/Sorting.cpp."""
    return _picked(self, dim, keepdim, lambda x, axis: _ranked(x, k, axis))


def _picked(x: torch.Tensor, dim: int, keepdim: bool, pick: Callable[[torch.Tensor, int], Any]) -> tuple[Any, Any]:
    """What ``pick`` leaves of the dimension, and the only index that there is in one of size 1."""
    if x.dim() == 0:
        return x, aten.full.default([], 0, dtype=torch.int64, device=x.device)
    dim = dim % x.dim()
    out = x if x.shape[dim] == 1 else pick(x, dim)
    out = out if keepdim else aten.squeeze.dim(out, dim)
    return out, aten.full_like.default(out, 0, dtype=torch.int64)


def _is_ordered(call: OpCall) -> bool:
    return floating(call) or call.arguments["self"].meta["val"].dtype in (torch.int32, torch.int64)


def _has_median(call: OpCall) -> bool:
    """Whether the rank is known, within the limit, and no index is read that depends on the order of equal elements."""
    value = call.arguments["self"].meta["val"]
    size = 1 if value.dim() == 0 else value.shape[call.arguments["dim"]]
    if not _is_ordered(call) or not isinstance(size, int) or size < 1:
        return False
    return size == 1 or (_in_order(_middle(size), size, value.dtype) and reads_values(call))


def _has_whole_median(call: OpCall) -> bool:
    value = call.arguments["self"].meta["val"]
    if not _is_ordered(call) or not all(isinstance(size, int) for size in value.shape):
        return False
    size = value.shape.numel()
    return size > 0 and _in_order(_middle(size), size, value.dtype)


def _in_order(k: int, size: int, dtype: torch.dtype) -> bool:
    """Whether the first ``k`` elements are had in an engine."""
    return k <= MAX_ORDERED or is_merged(size, dtype)


def _has_rank(call: OpCall) -> bool:
    value, k = call.arguments["self"].meta["val"], call.arguments["k"]
    size = 1 if value.dim() == 0 else value.shape[call.arguments["dim"]]
    if not _is_ordered(call) or not isinstance(k, int) or k < 1 or not statically_known_true(size >= k):
        return False
    if isinstance(size, int):
        return size == 1 or (_in_order(min(k, size - k + 1), size, value.dtype) and reads_values(call))
    return k <= MAX_ORDERED and reads_values(call)


ORDER_STATISTICS: dict[Callable[..., Any], Decomposition] = {
    aten.median.default: Decomposition(_over_all(_median), _has_whole_median),
    aten.nanmedian.default: Decomposition(_over_all(_nanmedian), _has_whole_median),
    aten.median.dim: Decomposition(_over_dimension(_median), _has_median),
    aten.nanmedian.dim: Decomposition(_over_dimension(_nanmedian), _has_median),
    aten.kthvalue.default: Decomposition(kthvalue, _has_rank),
}
