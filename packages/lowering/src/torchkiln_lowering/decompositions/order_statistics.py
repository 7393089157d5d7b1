"""Medians and other elements by rank, from the smallest or largest in order.

Which of equal elements PyTorch takes, it leaves open: calls whose indices are read stay with it, but for those of one element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torchkiln_core.call import OpCall
from torchkiln_core.rejection import Requires
from torchkiln_lowering.decompositions.numbers import number_like
from torchkiln_lowering.decompositions.precision import as_dtype, floating
from torchkiln_lowering.decompositions.sorting import MAX_ORDERED, MAX_SORTED, OPEN_INDICES, STATIC, is_merged, size_along
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


def _knows_sizes(call: OpCall) -> bool:
    return all(isinstance(size, int) for size in call.arguments["self"].meta["val"].shape)


def _has_median(call: OpCall) -> bool:
    return _in_order(_middle(size_along(call)), size_along(call), call)


def _has_whole_median(call: OpCall) -> bool:
    size = call.arguments["self"].meta["val"].shape.numel()
    return _in_order(_middle(size), size, call)


def _in_order(k: int, size: int, call: OpCall) -> bool:
    """Whether the first ``k`` elements are had in an engine."""
    return k <= MAX_ORDERED or is_merged(size, call.arguments["self"].meta["val"].dtype)


def _has_rank(call: OpCall) -> bool:
    k = call.arguments["k"]
    return isinstance(k, int) and k >= 1 and statically_known_true(size_along(call) >= k)


def _is_near(call: OpCall) -> bool:
    k, size = call.arguments["k"], size_along(call)
    return _in_order(min(k, size - k + 1), size, call) if isinstance(size, int) else k <= MAX_ORDERED


_ORDERED = Requires("floating-point, int32 or int64 elements", _is_ordered)
_AT_MOST = f"at most {MAX_SORTED} elements, of float64 at most {2 * MAX_ORDERED}"
_MEDIAN = (
    _ORDERED,
    STATIC,
    Requires("at least one element along the dimension", lambda call: bool(size_along(call) > 0)),
    Requires(f"{_AT_MOST}, along the dimension", _has_median),
    OPEN_INDICES,
)
_WHOLE_MEDIAN = (
    _ORDERED,
    Requires("known sizes", _knows_sizes),
    Requires("at least one element", lambda call: bool(call.arguments["self"].meta["val"].shape.numel() > 0)),
    Requires(_AT_MOST, _has_whole_median),
)
_KTH = (
    _ORDERED,
    Requires("a known k, and that the dimension is known to have as many elements", _has_rank),
    Requires(f"a k of at most {MAX_ORDERED}, which counts from the nearer end of a known size, or {_AT_MOST}", _is_near),
    OPEN_INDICES,
)


ORDER_STATISTICS: dict[Callable[..., Any], Decomposition] = {
    aten.median.default: Decomposition(_over_all(_median), limits=_WHOLE_MEDIAN),
    aten.nanmedian.default: Decomposition(_over_all(_nanmedian), limits=_WHOLE_MEDIAN),
    aten.median.dim: Decomposition(_over_dimension(_median), limits=_MEDIAN),
    aten.nanmedian.dim: Decomposition(_over_dimension(_nanmedian), limits=_MEDIAN),
    aten.kthvalue.default: Decomposition(kthvalue, limits=_KTH),
}
