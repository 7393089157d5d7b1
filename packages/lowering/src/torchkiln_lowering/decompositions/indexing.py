"""Operators that read or write places by position, in terms of gathers, comparisons and choices. No size changes the number of calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchkiln_core.call import OpCall
from torchkiln_core.rejection import Requires
from torchkiln_lowering.decompositions.accumulate import MAX_COMPARED, at_most, count
from torchkiln_lowering.decompositions.precision import as_dtype
from torchkiln_lowering.decompositions.table import HAS_DIMENSIONS, Decomposition
from torchkiln_lowering.metadata import known_and_not_empty

aten = torch.ops.aten
MaybeTensor = torch.Tensor | None


def _positions(size: Any, like: torch.Tensor) -> Any:
    return aten.arange.default(size, dtype=torch.int64, device=like.device)


def _is_bool(call: OpCall) -> bool:
    return bool(call.arguments["self"].meta["val"].dtype == torch.bool)


def _as_numbers(target: Callable[..., Any]) -> Callable[..., Any]:
    """The operator over bool tensors as one over int32: TensorRT moves no bool by index."""

    def place(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        args = tuple(as_dtype(item, torch.int32) if _holds_bools(item) else item for item in args)
        return aten.ne.Scalar(target(as_dtype(self, torch.int32), *args, **kwargs), 0)

    return place


_copy_numbers = _as_numbers(aten.index_copy.default)


def _copies(self: torch.Tensor, *args: Any) -> Any:
    return _copy_numbers(self, *args) if self.dtype == torch.bool else index_copy(self, *args)


def _holds_bools(item: Any) -> bool:
    return isinstance(item, torch.Tensor) and item.dtype == torch.bool


def index_copy(self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> Any:
    """``index_copy`` along any dimension, as a write into the leading one."""
    dim = dim % self.dim()
    first, rest = (aten.transpose.int(item, 0, dim) for item in (self, source))
    return aten.transpose.int(aten.index_put.default(first, [index], rest), 0, dim)


def _is_not_first(call: OpCall) -> bool:
    value = call.arguments["self"].meta["val"]
    return bool(value.dim() > 0 and int(call.arguments["dim"]) % value.dim() and value.dtype != torch.bool)


def take(self: torch.Tensor, index: torch.Tensor) -> Any:
    """``take``: ``self`` as one row, negative indices from its end."""
    flat = aten.reshape.default(self, [-1])
    wanted = aten.reshape.default(index, [-1])
    wanted = aten.where.self(aten.lt.Scalar(wanted, 0), aten.add.Tensor(wanted, flat.shape[0]), wanted)
    return aten.reshape.default(aten.index_select.default(flat, 0, wanted), list(index.shape))


def put(self: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False) -> Any:
    """``put``: into ``self`` as one row. Source: ATen/native/TensorAdvancedIndexing.cpp."""
    flat, places, values = (aten.reshape.default(item, [-1]) for item in (self, index, source))
    return aten.reshape.default(aten.index_put.default(flat, [places], values, accumulate), list(self.shape))


_put_numbers = _as_numbers(put)


def _puts_anywhere(self: torch.Tensor, *args: Any) -> Any:
    return _put_numbers(self, *args) if self.dtype == torch.bool else put(self, *args)


def one_hot(self: torch.Tensor, num_classes: int = -1) -> Any:
    """``one_hot``: ``[*] -> int64 [*, C]``. Source: ATen/native/Onehot.cpp.

    A class outside of ``0 ... C - 1`` gives a row of zeros: eager raises, which no engine can.
    """
    classes = aten.arange.default(num_classes, dtype=self.dtype, device=self.device)
    return as_dtype(aten.eq.Tensor(aten.unsqueeze.default(self, -1), classes), torch.int64)


def _has_classes(call: OpCall) -> bool:
    return bool(call.arguments["num_classes"] > 0)


def _is_integer(call: OpCall) -> bool:
    return call.arguments["self"].meta["val"].dtype in (torch.int32, torch.int64)


def unfold(self: torch.Tensor, dimension: int, size: int, step: int) -> Any:
    """``unfold`` of ``[*, L, *]``: windows ``[*, 1 + (L - size) // step, *, size]``. Source: ATen/native/TensorShape.cpp."""
    dim = dimension % self.dim()
    windows = (self.shape[dim] - size) // step + 1
    starts = aten.unsqueeze.default(aten.mul.Scalar(_positions(windows, self), step), 1)
    places = aten.reshape.default(aten.add.Tensor(starts, aten.unsqueeze.default(_positions(size, self), 0)), [-1])
    read = aten.index_select.default(self, dim, places)
    shaped = aten.reshape.default(read, [*self.shape[:dim], windows, size, *self.shape[dim + 1 :]])
    order = [axis for axis in range(self.dim() + 1) if axis != dim + 1]
    return aten.permute.default(shaped, [*order, dim + 1])


def diagonal_scatter(self: torch.Tensor, src: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """``diagonal_scatter``: ``src`` ``[*, D]`` on a diagonal of ``self``."""
    first, second = dim1 % self.dim(), dim2 % self.dim()
    rows, columns = (aten.unsqueeze.default(_positions(self.shape[dim], self), axis) for axis, dim in ((1, first), (0, second)))
    hits = aten.eq.Tensor(aten.add.Scalar(rows, offset), columns)
    # Row r holds element r - max(-offset, 0) of src; outside the diagonal any element will do.
    element = aten.add.Scalar(_positions(self.shape[first], self), min(offset, 0))
    element = aten.minimum.default(
        aten.clamp_min.default(element, 0), aten.add.Scalar(aten.full_like.default(element, 0), src.shape[-1] - 1)
    )
    spread = aten.unsqueeze.default(aten.index_select.default(src, -1, element), -1)
    others = [axis for axis in range(self.dim()) if axis not in (first, second)]
    moved = aten.permute.default(self, [*others, first, second])
    order = [*others, first, second]
    return aten.permute.default(aten.where.self(hits, spread, moved), [order.index(axis) for axis in range(self.dim())])


def _has_diagonal(call: OpCall) -> bool:
    source = call.arguments["src"].meta["val"]
    return isinstance(source.shape[-1], int) and source.shape[-1] > 0


def masked_scatter(self: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> Any:
    """``masked_scatter``: the n-th hit of the mask takes the n-th element of ``source``."""
    shape = torch.broadcast_shapes(self.shape, mask.shape)  # type: ignore[no-untyped-call]
    hits = aten.reshape.default(aten.expand.default(mask, shape), [-1])
    number = aten.sub.Scalar(aten.cumsum.default(as_dtype(hits, torch.int64), 0), 1)
    flat = aten.reshape.default(source, [-1])
    last = aten.add.Scalar(aten.full_like.default(number, 0), flat.shape[0] - 1)
    number = aten.minimum.default(aten.clamp_min.default(number, 0), last)
    taken = aten.index_select.default(flat, 0, number)
    kept = aten.reshape.default(aten.expand.default(self, shape), [-1])
    return aten.view.default(aten.where.self(hits, taken, kept), list(shape))


def _has_mask(call: OpCall) -> bool:
    return bool(call.arguments["mask"].meta["val"].dtype == torch.bool)


def _knows_source(call: OpCall) -> bool:
    return known_and_not_empty(call.arguments["source"].meta["val"].shape)


def searchsorted(
    sorted_sequence: torch.Tensor,
    self: torch.Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: MaybeTensor = None,
) -> Any:
    """``searchsorted``: the number of elements of the row that come before a value; NaN comes last.

    Source: ATen/native/Bucketization.cpp.
    """
    from_right = right or side == "right"
    edges = sorted_sequence if sorter is None else aten.gather.default(sorted_sequence, -1, sorter)
    row, value = edges if edges.dim() == 1 else aten.unsqueeze.default(edges, -2), aten.unsqueeze.default(self, -1)
    # "Not at or after" instead of "before", so that a value of NaN comes after everything.
    later = aten.gt.Tensor(row, value) if from_right else aten.ge.Tensor(row, value)
    out = aten.sum.dim_IntList(as_dtype(aten.logical_not.default(later), torch.int64), [-1])
    return as_dtype(out, torch.int32) if out_int32 else out


def bucketize(self: torch.Tensor, boundaries: torch.Tensor, *, out_int32: bool = False, right: bool = False) -> Any:
    """``bucketize``, which is ``searchsorted`` of one row."""
    return searchsorted(boundaries, self, out_int32=out_int32, right=right)


def _compares(sequence: str) -> tuple[Requires, ...]:
    """The limits of a search for ``self`` in the rows of another argument."""

    def has_one_dtype(call: OpCall) -> bool:
        return bool(call.arguments[sequence].meta["val"].dtype == call.arguments["self"].meta["val"].dtype)

    def compared(call: OpCall) -> float:
        row, value = (call.arguments[name].meta["val"] for name in (sequence, "self"))
        return count([*value.shape, row.shape[-1]])

    one_dtype = Requires(f"one dtype of {sequence} and what is looked for", has_one_dtype)
    return one_dtype, at_most(MAX_COMPARED, f"comparisons with {sequence}", compared)


def unsafe_masked_index(self: torch.Tensor, mask: torch.Tensor, indices: Sequence[MaybeTensor], fill: float) -> Any:
    """``_unsafe_masked_index``: reads at ``indices`` where the mask says so, and gives ``fill`` elsewhere."""
    safe = [index if index is None else aten.clamp.default(index, 0, size - 1) for index, size in zip(indices, self.shape, strict=False)]
    nothing = aten.full.default([], fill, dtype=self.dtype, device=self.device)
    return aten.where.self(mask, aten.index.Tensor(self, safe), nothing)


def _reads_elements(call: OpCall) -> bool:
    indices = [item for item in call.arguments["indices"] if item is not None]
    return bool(len(indices) == call.arguments["self"].meta["val"].dim())


def _spans_mask(call: OpCall) -> bool:
    dims = [item.meta["val"].dim() for item in call.arguments["indices"] if item is not None]
    return bool(max(dims, default=0) >= call.arguments["mask"].meta["val"].dim())


def _knows_sizes(call: OpCall) -> bool:
    return known_and_not_empty(call.arguments["self"].meta["val"].shape)


def empty_strided(size: Sequence[Any], stride: Sequence[Any], **settings: Any) -> Any:
    """``empty_strided``: memory that is not written yet; the strides are given to it where they matter."""
    return aten.empty.memory_format(size, **settings)


def new_empty_strided(self: torch.Tensor, size: Sequence[Any], stride: Sequence[Any], **settings: Any) -> Any:
    """``new_empty_strided``."""
    return aten.new_empty.default(self, size, **settings)


_ONE_HOT = (Requires("a known number of classes", _has_classes), Requires("int32 or int64 elements", _is_integer))
_HAS_DIAGONAL = (Requires("a diagonal of known length", _has_diagonal),)
_MASKS = (Requires("a mask of bool", _has_mask), Requires("a source of known sizes, none of them 0", _knows_source))
_READS_WHOLE = (
    Requires("an index for every dimension", _reads_elements),
    Requires("indices of as many dimensions as the mask", _spans_mask),
    Requires("known sizes, none of them 0", _knows_sizes),
)

INDEXING: dict[Callable[..., Any], Decomposition] = {
    aten.index_copy.default: Decomposition(_copies, lambda call: _is_bool(call) or _is_not_first(call)),
    aten.index_fill.int_Scalar: Decomposition(_as_numbers(aten.index_fill.int_Scalar), _is_bool),
    aten.index_fill.int_Tensor: Decomposition(_as_numbers(aten.index_fill.int_Tensor), _is_bool),
    aten.take.default: Decomposition(take),
    aten.put.default: Decomposition(_puts_anywhere),
    aten.one_hot.default: Decomposition(one_hot, limits=_ONE_HOT),
    aten.unfold.default: Decomposition(unfold, limits=(HAS_DIMENSIONS,)),
    aten.diagonal_scatter.default: Decomposition(diagonal_scatter, limits=_HAS_DIAGONAL),
    aten.masked_scatter.default: Decomposition(masked_scatter, limits=_MASKS),
    aten.searchsorted.Tensor: Decomposition(searchsorted, limits=_compares("sorted_sequence")),
    aten.bucketize.Tensor: Decomposition(bucketize, limits=_compares("boundaries")),
    aten._unsafe_masked_index.default: Decomposition(unsafe_masked_index, limits=_READS_WHOLE),
    aten.empty_strided.default: Decomposition(empty_strided),
    aten.new_empty_strided.default: Decomposition(new_empty_strided),
}
