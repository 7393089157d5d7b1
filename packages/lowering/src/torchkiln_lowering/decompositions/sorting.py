"""Orders of more elements than a layer of TensorRT gives, and of so few, or so narrow ones, that it has none for them.

Long rows are sorted in chunks, which are merged in pairs: a binary search tells how many elements of the second chunk come before each of
the first. The number of steps grows with the square of the number of binary digits of the size, the work by the size times that.
Source of the order: ATen/native/cpu/SortingKernel.cpp: equal elements keep their order, and NaN is the largest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchkiln_core.call import OpCall
from torchkiln_core.rejection import Requires
from torchkiln_lowering.decompositions.precision import as_dtype
from torchkiln_lowering.decompositions.table import Decomposition, reads_first

aten = torch.ops.aten

MAX_ORDERED = 3840
"""The most elements that a layer orders. Source: TensorRT operator page "TopK"."""
MAX_SORTED = 1 << 16
"""The most elements of a row that are merged: 70 steps of a search."""
CHUNK = 2048
"""Elements that a layer orders before the first merge: a power of two, which searches halve to the end."""
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64)


def sort(self: torch.Tensor, dim: int = -1, descending: bool = False) -> tuple[Any, Any]:
    """``sort`` along ``dim`` of ``[*, N, *]``."""
    return sort_stable(self, stable=True, dim=dim, descending=descending)


def sort_stable(self: torch.Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False) -> tuple[Any, Any]:
    """``sort.stable`` along ``dim`` of ``[*, N, *]``: values and int64 indices."""
    if self.dim() == 0 or self.shape[dim] < 2:
        return self, aten.full_like.default(self, 0, dtype=torch.int64)
    if self.dtype == torch.bool:
        values, indices = aten.sort.stable(as_dtype(self, torch.int32), stable=True, dim=dim, descending=descending)
        return as_dtype(values, torch.bool), indices
    rows = aten.transpose.int(self, dim, -1)
    count: Any = 1
    for size in rows.shape[:-1]:
        count = count * size
    order = _order(aten.reshape.default(rows, [count, rows.shape[-1]]), descending)
    indices = aten.transpose.int(aten.reshape.default(order, list(rows.shape)), dim, -1)
    return aten.gather.default(self, dim, indices), indices


def topk(self: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Any, Any]:
    """``topk`` of ``[*, N, *]`` as the beginning of the whole order."""
    if self.dim() == 0:
        return sort(self)
    values, indices = sort(self, dim, largest)
    return aten.slice.Tensor(values, dim, 0, k), aten.slice.Tensor(indices, dim, 0, k)


def _order(rows: torch.Tensor, descending: bool) -> Any:
    """Indices ``[R, N]`` that sort ``rows`` ``[R, N]``."""
    count, size = rows.shape
    chunks = 1
    while chunks * CHUNK < size:
        chunks *= 2
    padding = aten.full.default([1, 1], _last(rows.dtype, descending), dtype=rows.dtype, device=rows.device)
    padded = aten.cat.default([rows, aten.expand.default(padding, [count, chunks * CHUNK - size])], 1)
    keys, places = aten.sort.stable(aten.reshape.default(padded, [count, chunks, CHUNK]), stable=True, dim=-1, descending=descending)
    starts = aten.arange.start_step(0, chunks * CHUNK, CHUNK, dtype=torch.int64, device=rows.device)
    order = aten.add.Tensor(places, aten.unsqueeze.default(starts, 1))
    while chunks > 1:
        chunks //= 2
        shape = [count, chunks, 2, keys.shape[-1]]
        merged = _merged(aten.reshape.default(keys, shape), descending)
        keys, order = (aten.gather.default(aten.reshape.default(item, list(merged.shape)), -1, merged) for item in (keys, order))
    return aten.slice.Tensor(aten.squeeze.dim(order, 1), 1, 0, size)


def _last(dtype: torch.dtype, descending: bool) -> float | int:
    """What nothing comes after, but its equals of higher indices."""
    if dtype.is_floating_point:
        return float("-inf") if descending else float("nan")
    return torch.iinfo(dtype).min if descending else torch.iinfo(dtype).max


def _merged(pairs: torch.Tensor, descending: bool) -> Any:
    """The place ``[R, C, 2 * L]`` in both chunks of ``pairs`` ``[R, C, 2, L]``, one after the other, of each element of their merger."""
    first, second = (aten.select.int(pairs, 2, item) for item in (0, 1))
    length = pairs.shape[-1]
    own, slots = (aten.arange.default(size, dtype=torch.int64, device=pairs.device) for size in (length, 2 * length))
    lands = aten.add.Tensor(_number_before(first, second, descending), own)
    empty = aten.full.default([1, 1, 1], 0, dtype=torch.int64, device=pairs.device)
    empty = aten.expand.default(empty, [*first.shape[:2], 2 * length])
    of_first = aten.scatter.value(empty, -1, lands, 1)
    so_far = aten.cumsum.default(of_first, -1)
    of_second = aten.add.Scalar(aten.sub.Tensor(slots, so_far), length)
    return aten.where.self(aten.gt.Scalar(of_first, 0), aten.sub.Scalar(so_far, 1), of_second)


def _number_before(first: torch.Tensor, second: torch.Tensor, descending: bool) -> Any:
    """How many of ``second`` ``[R, C, L]``, which is in order, come before each of ``first``, behind which its equals stand."""
    place = aten.full_like.default(first, 0, dtype=torch.int64)
    step = second.shape[-1] // 2
    steps = []
    while step:
        steps.append(step)
        step //= 2
    # The halves leave one element to look at.
    for step in (*steps, 1):
        found = aten.gather.default(second, -1, aten.add.Scalar(place, step - 1))
        # NaN comes before all numbers in a descending order, and before none in an ascending one.
        before = aten.logical_not.default(aten.le.Tensor(found, first)) if descending else aten.lt.Tensor(found, first)
        place = aten.where.self(before, aten.add.Scalar(place, step), place)
    if not first.dtype.is_floating_point:
        return place
    if descending:
        of_nan = aten.full.default([], 0, dtype=torch.int64, device=first.device)
    else:
        numbers = aten.logical_not.default(aten.isnan.default(second))
        of_nan = aten.sum.dim_IntList(as_dtype(numbers, torch.int64), [-1], True)
    return aten.where.self(aten.isnan.default(first), of_nan, place)


def size_along(call: OpCall) -> Any:
    """The size of the dimension ``dim``; that of a tensor without dimensions is 1."""
    value = call.arguments["self"].meta["val"]
    return 1 if value.dim() == 0 else value.shape[call.arguments["dim"]]


def is_merged(size: Any, dtype: torch.dtype) -> bool:
    """Whether rows of a size are sorted in chunks."""
    return isinstance(size, int) and MAX_ORDERED < size <= MAX_SORTED and dtype in _DTYPES


def _knows_size(call: OpCall) -> bool:
    return isinstance(size_along(call), int)


def _is_trivial(call: OpCall) -> bool:
    """Whether there is nothing to order."""
    return _knows_size(call) and bool(size_along(call) < 2)


def _is_left(call: OpCall) -> bool:
    """Whether no layer orders the elements."""
    size = size_along(call)
    is_bool = call.arguments["self"].meta["val"].dtype == torch.bool
    return bool(is_bool or _is_trivial(call) or not isinstance(size, int) or size > MAX_ORDERED)


def _takes_many(call: OpCall) -> bool:
    """Whether no layer gives as many elements."""
    k = call.arguments["k"]
    return bool(call.arguments["self"].meta["val"].dim() == 0 or not isinstance(k, int) or k > MAX_ORDERED)


def _takes_known(call: OpCall) -> bool:
    k = call.arguments["k"]
    return isinstance(k, int) and (call.arguments["self"].meta["val"].dim() > 0 or k == 1)


def _is_ordered(call: OpCall) -> bool:
    return _is_trivial(call) or call.arguments["self"].meta["val"].dtype in (*_DTYPES, torch.bool)


def _is_numeric(call: OpCall) -> bool:
    return _is_trivial(call) or call.arguments["self"].meta["val"].dtype in _DTYPES


STATIC = Requires("a known size of the dimension", _knows_size)
"""The limit of decompositions whose steps depend on the size."""
OPEN_INDICES = Requires(
    "that nobody reads its indices, which PyTorch leaves open among equal elements", lambda call: _is_trivial(call) or reads_first(call)
)
"""The limit of decompositions that find other indices than PyTorch."""
_SHORT = Requires(f"at most {MAX_SORTED} elements along the dimension", lambda call: bool(size_along(call) <= MAX_SORTED))
_STABLE = Requires(
    "stable=True, or that nobody reads its indices, which PyTorch leaves open among equal elements",
    lambda call: call.arguments.get("stable") is True or OPEN_INDICES.holds(call),
)
_SORTS = (STATIC, Requires("float32, float16, bfloat16, int32, int64 or bool elements", _is_ordered), _SHORT, _STABLE)
_TAKES = (
    Requires("a known k, which is 1 where there are no dimensions", _takes_known),
    STATIC,
    Requires("float32, float16, bfloat16, int32 or int64 elements", _is_numeric),
    _SHORT,
    OPEN_INDICES,
)

SORTING: dict[Callable[..., Any], Decomposition] = {
    aten.sort.default: Decomposition(sort, _is_left, limits=_SORTS),
    aten.sort.stable: Decomposition(sort_stable, _is_left, limits=_SORTS),
    aten.topk.default: Decomposition(topk, _takes_many, limits=_TAKES),
}
