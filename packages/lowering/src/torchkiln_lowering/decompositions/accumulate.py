"""Operators that reduce into places given by an index, in a number of calls that no size changes.

Every place compares its own position with the whole index, and reduces what matches: equal to eager for NaN and infinities too, which
a product with a one-hot matrix is not. The comparison is as large as index times places, so calls beyond ``MAX_COMPARED`` keep their form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._sympy.value_ranges import bound_sympy

from torchkiln_core.call import OpCall
from torchkiln_core.rejection import Requires
from torchkiln_core.size import size_of
from torchkiln_lowering.decompositions.precision import as_dtype, widened
from torchkiln_lowering.decompositions.table import Decomposition
from torchkiln_lowering.metadata import known_equal

aten = torch.ops.aten

MAX_COMPARED = 1 << 26
"""Elements of the largest comparison that a decomposition may make."""

_NAMES = {"add": "sum", "multiply": "prod"}


def largest(size: Any) -> float:
    """The largest value of a size in the ranges that its program was captured for; infinite where it has no bound."""
    expression = size_of(size)
    if isinstance(expression, int):
        return expression
    upper = bound_sympy(expression, size.node.shape_env.var_to_range).upper
    return int(upper) if upper.is_Integer and upper < 1 << 40 else float("inf")


def count(shape: Sequence[Any]) -> float:
    """The largest number of elements of a shape ``[*]``."""
    total: float = 1
    for size in shape:
        total *= largest(size)
    return total


def at_most(limit: int, what: str, number: Callable[[OpCall], float]) -> Requires:
    """The limit of decompositions that take a number of elements which grows with a product of sizes."""
    return Requires(f"at most {limit} {what}, at the largest sizes that the program is for", lambda call: number(call) <= limit)


def _is_real(call: OpCall) -> bool:
    return not call.arguments["self"].meta["val"].dtype.is_complex


def _has_dimensions(call: OpCall) -> bool:
    return all(call.arguments[name].meta["val"].dim() > 0 for name in ("self", "index"))


def _compared(call: OpCall) -> float:
    value, places = (call.arguments[name].meta["val"] for name in ("self", "index"))
    dim = int(call.arguments["dim"]) % value.dim()
    rest = [size for axis, size in enumerate(value.shape) if axis != dim]
    return count([*rest, places.shape[0 if places.dim() == 1 else dim]]) * largest(value.shape[dim])


def _identity(reduce: str, dtype: torch.dtype) -> float | int | bool:
    if reduce == "prod":
        return 1
    if reduce not in ("amax", "amin"):
        return 0
    if dtype.is_floating_point:
        return float("-inf") if reduce == "amax" else float("inf")
    limits = torch.iinfo(dtype)
    return limits.min if reduce == "amax" else limits.max


def _over(reduce: str, x: torch.Tensor, dim: int) -> Any:
    if reduce == "prod":
        return aten.prod.dim_int(x, dim)
    if reduce in ("amax", "amin"):
        return getattr(aten, reduce).default(x, [dim])
    return aten.sum.dim_IntList(x, [dim], dtype=x.dtype)


def _joined(reduce: str, x: torch.Tensor, y: torch.Tensor) -> Any:
    joins = {"prod": aten.mul.Tensor, "amax": aten.maximum.default, "amin": aten.minimum.default}
    return joins.get(reduce, aten.add.Tensor)(x, y)


def reduced(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, include_self: bool) -> Any:
    """``scatter_reduce`` where index and source are equal in shape, and equal to ``x`` in all but ``dim``.

    Source: ATen/native/TensorAdvancedIndexing.cpp.
    """
    if x.dtype == torch.bool:
        wide = reduced(as_dtype(x, torch.int32), dim, index, as_dtype(source, torch.int32), reduce, include_self)
        return aten.ne.Scalar(wide, 0)
    kept = widened(x)
    # [.., N, 1, ..] against [P, ..]: the index against every place, one dimension more than x.
    places = aten.arange.default(x.shape[dim], dtype=torch.int64, device=x.device)
    places = aten.view.default(places, [-1, *[1] * (x.dim() - dim - 1)])
    hits = aten.eq.Tensor(aten.unsqueeze.default(as_dtype(index, torch.int64), dim + 1), places)
    neutral = aten.full.default([], _identity(reduce, kept.dtype), dtype=kept.dtype, device=x.device)
    values = aten.where.self(hits, aten.unsqueeze.default(widened(source), dim + 1), neutral)
    out = _over(reduce, values, dim)
    if include_self:
        out = _joined(reduce, kept, out)
    if reduce == "mean" or not include_self:
        number = aten.sum.dim_IntList(as_dtype(hits, kept.dtype), [dim], dtype=kept.dtype)
        touched = aten.gt.Scalar(number, 0)
        if reduce == "mean":
            out = _divided(out, aten.add.Scalar(number, 1) if include_self else number)
        out = aten.where.self(touched, out, kept)
    return as_dtype(out, x.dtype)


def _divided(total: torch.Tensor, number: torch.Tensor) -> Any:
    if total.dtype.is_floating_point:
        return aten.div.Tensor(total, number)
    # Where nothing is counted the quotient is not read; 1 keeps it from dividing by 0.
    return aten.div.Tensor_mode(total, aten.clamp_min.default(number, 1), rounding_mode="floor")


def scatter_reduce(
    self: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, reduce: str, *, include_self: bool = True
) -> torch.Tensor:
    """``scatter_reduce.two``: the index may be shorter than the source, and than ``self`` in other dimensions than ``dim``."""
    dim = dim % self.dim()
    target = self
    cuts = [
        axis for axis in range(self.dim()) if axis != dim and not known_equal(self.shape[axis : axis + 1], index.shape[axis : axis + 1])
    ]
    steps = [target]
    for axis in cuts:
        target = aten.slice.Tensor(target, axis, 0, index.shape[axis])
        steps.append(target)
    for axis in range(self.dim()):
        if not known_equal(src.shape[axis : axis + 1], index.shape[axis : axis + 1]):
            src = aten.slice.Tensor(src, axis, 0, index.shape[axis])
    out = reduced(target, dim, index, src, reduce, include_self)
    for axis, whole in zip(reversed(cuts), reversed(steps[:-1]), strict=True):
        out = aten.slice_scatter.default(whole, out, axis, 0, index.shape[axis])
    return out if isinstance(out, torch.Tensor) else target


def scatter_add(self: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    """``scatter_add``."""
    return scatter_reduce(self, dim, index, src, "sum")


def scatter_with(self: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, *, reduce: str) -> torch.Tensor:
    """``scatter.reduce``, whose reductions are called ``add`` and ``multiply``."""
    return scatter_reduce(self, dim, index, src, _NAMES[reduce])


def scatter_number(self: torch.Tensor, dim: int, index: torch.Tensor, value: float, *, reduce: str) -> torch.Tensor:
    """``scatter.value_reduce``."""
    return scatter_reduce(self, dim, index, aten.full.default(index.shape, value, dtype=self.dtype, device=self.device), _NAMES[reduce])


def _along(self: torch.Tensor, dim: int, index: torch.Tensor) -> Any:
    """A 1-d index as one that fits ``self`` in all dimensions but ``dim``."""
    shaped = aten.view.default(index, [1] * dim + [-1] + [1] * (self.dim() - dim - 1))
    return aten.expand.default(shaped, [*self.shape[:dim], index.shape[0], *self.shape[dim + 1 :]])


def index_reduce(self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True) -> Any:
    """``index_reduce``: ``index`` ``[N]``, ``source`` ``[*, N, *]``."""
    dim = dim % self.dim()
    return reduced(self, dim, _along(self, dim, index), source, reduce, include_self)


def index_add(self: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: float = 1) -> Any:
    """``index_add``."""
    scaled = source if alpha == 1 else aten.mul.Scalar(source, alpha)
    return index_reduce(self, dim, index, scaled, "sum")


def _adds_or_skips(call: OpCall) -> bool:
    """Whether what is put is added, or a dimension stands before the indices."""
    return call.arguments["accumulate"] or not call.arguments["indices"] or call.arguments["indices"][0] is None


def _given(call: OpCall) -> list[torch.Tensor]:
    return [item.meta["val"] for item in call.arguments["indices"] if item is not None]


def _has_numbers(call: OpCall) -> bool:
    given = _given(call)
    return bool(given) and all(item.dtype in (torch.int32, torch.int64) for item in given)


def _are_neighbours(call: OpCall) -> bool:
    places = [place for place, item in enumerate(call.arguments["indices"]) if item is not None]
    return places == list(range(places[0], places[-1] + 1))


def _adds_numbers(call: OpCall) -> bool:
    return not call.arguments["accumulate"] or (_is_real(call) and call.arguments["self"].meta["val"].dtype != torch.bool)


def _put_compared(call: OpCall) -> float:
    shape = torch.broadcast_shapes(*(item.shape for item in _given(call)))  # type: ignore[no-untyped-call]
    return count(shape) * count(call.arguments["self"].meta["val"].shape) if call.arguments["accumulate"] else 0


def index_put(self: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False) -> Any:
    """``index_put`` of adjacent indices: they become the leading ones, and those that add compare positions."""
    given = [item for item in indices if item is not None]
    first = [item is not None for item in indices].index(True)
    shape = list(torch.broadcast_shapes(*(item.shape for item in given)))  # type: ignore[no-untyped-call]
    depth = len(given)
    order = [*range(first, first + depth), *range(first), *range(first + depth, self.dim())]
    moved = aten.permute.default(self, order) if first else self
    if first:
        whole = aten.expand.default(values, [*self.shape[:first], *shape, *self.shape[first + depth :]])
        lead = range(first, first + len(shape))
        values = aten.permute.default(whole, [*lead, *range(first), *range(first + len(shape), whole.dim())])
    if accumulate:
        out = _add_at(moved, given, values, shape)
    else:
        out = aten.index_put.default(moved, given, values)
    return aten.permute.default(out, [order.index(dim) for dim in range(self.dim())]) if first else out


def _add_at(self: torch.Tensor, indices: Sequence[torch.Tensor], values: torch.Tensor, shape: list[Any]) -> Any:
    """Adds at indices ``[*]`` of the leading dimensions; negative ones count from the end."""
    depth = len(indices)
    flat: Any = None
    for index, size in zip(indices, self.shape[:depth], strict=True):
        wide = as_dtype(index, torch.int64)
        wide = aten.where.self(aten.lt.Scalar(wide, 0), aten.add.Tensor(wide, size), wide)
        flat = wide if flat is None else aten.add.Tensor(aten.mul.Tensor(flat, size), wide)
    rest = list(self.shape[depth:])
    source = aten.reshape.default(aten.expand.default(values, [*shape, *rest]), [-1, *rest])
    flat = aten.reshape.default(aten.expand.default(flat, shape), [-1])
    out = index_reduce(aten.reshape.default(self, [-1, *rest]), 0, flat, source, "sum")
    return aten.view.default(out, list(self.shape))


def _folded(call: OpCall) -> float:
    return count([*call.arguments["self"].meta["val"].shape, *call.arguments["output_size"]])


def fold(
    self: torch.Tensor,
    output_size: Sequence[Any],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Any:
    """``col2im`` of ``[N, C * kH * kW, L]`` or without ``N``: rows are summed first, then columns.

    Source: ATen/native/Col2Im.cpp.
    """
    batched = self if self.dim() == 3 else aten.unsqueeze.default(self, 0)
    counts = [
        (size + 2 * pad - spread * (kernel - 1) - 1) // step + 1
        for size, kernel, spread, pad, step in zip(output_size, kernel_size, dilation, padding, stride, strict=True)
    ]
    high, wide = kernel_size
    channels = batched.shape[1] // (high * wide)
    x = aten.reshape.default(widened(batched), [batched.shape[0], channels, high, wide, *counts])
    x = aten.permute.default(x, [0, 1, 3, 5, 2, 4])
    for axis, rest in ((0, [wide, counts[1]]), (1, [output_size[0]])):
        x = aten.reshape.default(x, [batched.shape[0], channels, *rest, kernel_size[axis] * counts[axis]])
        taps = aten.arange.default(kernel_size[axis], dtype=torch.int64, device=self.device)
        starts = aten.arange.default(counts[axis], dtype=torch.int64, device=self.device)
        first = aten.add.Scalar(aten.mul.Scalar(starts, stride[axis]), -padding[axis])
        lands = aten.add.Tensor(aten.unsqueeze.default(aten.mul.Scalar(taps, dilation[axis]), 1), aten.unsqueeze.default(first, 0))
        hits = aten.eq.Tensor(
            aten.reshape.default(lands, [-1, 1]), aten.arange.default(output_size[axis], dtype=torch.int64, device=self.device)
        )
        nothing = aten.full.default([], 0, dtype=x.dtype, device=self.device)
        x = aten.sum.dim_IntList(aten.where.self(hits, aten.unsqueeze.default(x, -1), nothing), [-2], dtype=x.dtype)
        if axis == 0:
            # [N, C, kW, oW, H] to [N, C, H, kW, oW]
            x = aten.permute.default(x, [0, 1, 4, 2, 3])
    out = as_dtype(x, self.dtype)
    return out if self.dim() == 3 else aten.squeeze.dim(out, 0)


_COMPARISONS = "comparisons, of each place with each index"
_REAL = Requires("real elements", _is_real)
_FITS = (_REAL, Requires("at least one dimension", _has_dimensions), at_most(MAX_COMPARED, _COMPARISONS, _compared))
_PUTS = (
    Requires("indices of int32 or int64", _has_numbers),
    Requires("indices of neighbouring dimensions", _are_neighbours),
    Requires("real numbers where they are added", _adds_numbers),
    at_most(MAX_COMPARED, _COMPARISONS, _put_compared),
)
_FOLDS = (_REAL, at_most(MAX_COMPARED * 64, "products of a column's element and a pixel", _folded))

ACCUMULATE: dict[Callable[..., Any], Decomposition] = {
    aten.scatter_add.default: Decomposition(scatter_add, limits=_FITS),
    aten.scatter_reduce.two: Decomposition(scatter_reduce, limits=_FITS),
    aten.scatter.reduce: Decomposition(scatter_with, limits=_FITS),
    aten.scatter.value_reduce: Decomposition(scatter_number, limits=_FITS),
    aten.index_reduce.default: Decomposition(index_reduce, limits=_FITS),
    aten.index_add.default: Decomposition(index_add, limits=_FITS),
    aten.index_put.default: Decomposition(index_put, _adds_or_skips, limits=_PUTS),
    aten._unsafe_index_put.default: Decomposition(index_put, _adds_or_skips, limits=_PUTS),
    aten.col2im.default: Decomposition(fold, limits=_FOLDS),
}
