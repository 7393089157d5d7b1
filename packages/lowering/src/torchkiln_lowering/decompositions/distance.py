"""Distances between rows, in as many calls for any size."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torchkiln_core.call import OpCall
from torchkiln_core.rejection import Requires
from torchkiln_lowering.decompositions.accumulate import MAX_COMPARED, at_most, count, largest
from torchkiln_lowering.decompositions.numbers import number_like
from torchkiln_lowering.decompositions.precision import as_dtype
from torchkiln_lowering.decompositions.table import Decomposition

aten = torch.ops.aten

MAX_ROWS = 2048
"""Rows of ``pdist``: up to here a row number read off a pair's number in float32 is off by one at most."""
_MANY_ROWS = 25
"""More rows than this, and eager takes Euclidean distances from a matrix product."""


def _norm(difference: torch.Tensor, p: float, *, keeps_nan: bool = False) -> Any:
    """The p-norm of the last dimension. Source: ATen/native/cpu/DistanceOpsKernel.cpp and ATen/native/cuda/DistanceKernel.cu."""
    size = aten.abs.default(difference)
    zero = number_like(0, size)
    if p == 0:
        # 1 for all but zeros and NaN, which stays.
        apart = aten.where.self(aten.gt.Scalar(size, 0), aten.add.Scalar(zero, 1), size)
        return aten.sum.dim_IntList(apart, [-1])
    if p == 1:
        return aten.sum.dim_IntList(size, [-1])
    if p == 2:
        return aten.sqrt.default(aten.sum.dim_IntList(aten.mul.Tensor(size, size), [-1]))
    if math.isinf(p):
        # Eager's loops pass over NaN, but for those of pdist on the CPU.
        return aten.amax.default(size if keeps_nan else aten.where.self(aten.eq.Tensor(size, size), size, zero), [-1])
    return aten.pow.Tensor_Scalar(aten.sum.dim_IntList(aten.pow.Tensor_Scalar(size, p), [-1]), 1 / p)


def _by_products(x1: torch.Tensor, x2: torch.Tensor) -> Any:
    """``sqrt(|a|^2 - 2 a b + |b|^2)``, with its cancellation. Source: ATen/native/Distance.cpp, ``_euclidean_dist``."""
    left, right = (aten.sum.dim_IntList(aten.mul.Tensor(x, x), [-1], True) for x in (x1, x2))
    ones = [aten.full_like.default(square, 1) for square in (left, right)]
    rows = aten.cat.default([aten.mul.Scalar(x1, -2), left, ones[0]], -1)
    columns = aten.cat.default([x2, ones[1], right], -1)
    product = aten.matmul.default(rows, aten.transpose.int(columns, -2, -1))
    return aten.sqrt.default(aten.clamp_min.default(product, 0))


def _multiplies(rows: Any, columns: Any, p: float, mode: int | None) -> bool:
    """Whether eager takes distances from a matrix product: ``mode`` 0 or ``None`` leaves it to the sizes, 1 asks for it."""
    many = any(statically_known_true(size > _MANY_ROWS) for size in (rows, columns))
    return p == 2 and (mode == 1 or (mode != 2 and many))


def cdist(x1: torch.Tensor, x2: torch.Tensor, p: float, compute_mode: int | None) -> Any:
    """``_cdist_forward``: ``[*, P, M], [*, R, M] -> [*, P, R]``. Source: ATen/native/Distance.cpp."""
    if _multiplies(x1.shape[-2], x2.shape[-2], p, compute_mode):
        return _by_products(x1, x2)
    return _norm(aten.sub.Tensor(aten.unsqueeze.default(x1, -2), aten.unsqueeze.default(x2, -3)), p)


def _points(call: OpCall) -> tuple[Any, Any]:
    return call.arguments["x1"].meta["val"], call.arguments["x2"].meta["val"]


def _has_one_dtype(call: OpCall) -> bool:
    left, right = _points(call)
    return bool(left.dtype == right.dtype)


def _by_matrices(call: OpCall) -> bool:
    left, right = _points(call)
    return _multiplies(left.shape[-2], right.shape[-2], call.arguments["p"], call.arguments["compute_mode"])


def _has_points(call: OpCall) -> bool:
    return not _by_matrices(call) or all(_has_elements(item.shape[-2]) for item in _points(call))


def _differences(call: OpCall) -> float:
    if _by_matrices(call):
        return 0
    left, right = _points(call)
    batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])  # type: ignore[no-untyped-call]
    return count([*batch, left.shape[-2], *right.shape[-2:]])


def _has_elements(size: Any) -> bool:
    """Whether a size is known not to be 0: a norm over no elements is 0, which no maximum gives."""
    return statically_known_true(size > 0)


def pdist(self: torch.Tensor, p: float = 2) -> Any:
    """``_pdist_forward``: ``[N, M] -> [N (N - 1) / 2]``, the pairs ``i < j`` in order. Source: ATen/native/Distance.cpp."""
    rows = self.shape[0]
    pair = aten.arange.default(rows * (rows - 1) // 2, dtype=torch.int64, device=self.device)
    # Row i begins at pair i (2 N - 1 - i) / 2. Its inverse in float32 may be one off, and is put right in integers.
    width = 2 * rows - 1
    root = aten.sqrt.default(as_dtype(aten.add.Scalar(aten.mul.Scalar(pair, -8), width * width), torch.float32))
    guess = aten.mul.Scalar(aten.add.Scalar(aten.neg.default(root), width), 0.5)
    guess = aten.clamp_min.default(as_dtype(guess, torch.int64), 0)

    def start(row: torch.Tensor) -> Any:
        doubled = aten.mul.Tensor(row, aten.add.Scalar(aten.neg.default(row), width))
        return aten.div.Tensor_mode(doubled, aten.full_like.default(row, 2), rounding_mode="floor")

    early = aten.lt.Tensor(pair, start(guess))
    late = aten.ge.Tensor(pair, start(aten.add.Scalar(guess, 1)))
    first = aten.sub.Tensor(aten.add.Tensor(guess, as_dtype(late, torch.int64)), as_dtype(early, torch.int64))
    second = aten.add.Scalar(aten.add.Tensor(aten.sub.Tensor(pair, start(first)), first), 1)
    difference = aten.sub.Tensor(aten.index_select.default(self, 0, first), aten.index_select.default(self, 0, second))
    return _norm(difference, p, keeps_nan=self.device.type == "cpu")


def _has_pairs(call: OpCall) -> bool:
    return statically_known_true(call.arguments["self"].meta["val"].shape[0] > 1)


def _has_width(argument: str) -> Requires:
    return Requires("rows that are known not to be empty", lambda call: _has_elements(call.arguments[argument].meta["val"].shape[-1]))


_CDIST = (
    Requires("one dtype of both", _has_one_dtype),
    _has_width("x1"),
    Requires("numbers of rows that are known not to be 0, where distances come from a matrix product", _has_points),
    at_most(MAX_COMPARED, "differences, where distances do not come from a matrix product", _differences),
)
_PDIST = (
    Requires("rows that are known to be more than one", _has_pairs),
    at_most(MAX_ROWS, "rows", lambda call: largest(call.arguments["self"].meta["val"].shape[0])),
    _has_width("self"),
)

DISTANCE: dict[Callable[..., Any], Decomposition] = {
    aten._cdist_forward.default: Decomposition(cdist, limits=_CDIST),
    aten._pdist_forward.default: Decomposition(pdist, limits=_PDIST),
}
