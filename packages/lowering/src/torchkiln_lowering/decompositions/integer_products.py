"""Matrix products of integers, for which TensorRT has no layer: products of elements, summed. They wrap around as eager's do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from torchkiln_core.call import OpCall
from torchkiln_core.rejection import Requires
from torchkiln_lowering.decompositions.table import Decomposition

aten = torch.ops.aten

MOST_PER_ROW = 2**16
"""Products that one row of the left factor takes at most: all are in memory unless TensorRT makes one kernel of them."""


def mm(x: torch.Tensor, mat2: torch.Tensor) -> Any:
    """``mm`` and ``bmm``: ``[*, M, K], [*, K, N] -> [*, M, N]``. Source: ATen/native/LinearAlgebra.cpp."""
    return _summed(aten.mul.Tensor(aten.unsqueeze.default(x, -1), aten.unsqueeze.default(mat2, -3)), -2)


def mv(x: torch.Tensor, vec: torch.Tensor) -> Any:
    """``mv``: ``[M, K], [K] -> [M]``; ``dot``: ``[K], [K] -> []``."""
    return _summed(aten.mul.Tensor(x, vec), -1)


def _summed(products: torch.Tensor, axis: int) -> Any:
    return aten.sum.dim_IntList(products, [axis], dtype=products.dtype)


def _integers(call: OpCall) -> bool:
    return {value.meta["val"].dtype for value in call.arguments.values()} in ({torch.int32}, {torch.int64})


def _is_small(call: OpCall) -> bool:
    """Whether the right factor has few elements, whatever its batch."""
    sizes = call.arguments["mat2"].meta["val"].shape[-2:]
    return all(isinstance(size, int) for size in sizes) and math.prod(sizes) <= MOST_PER_ROW


_SMALL = (Requires(f"integer matrices, the second of known sizes and of at most {MOST_PER_ROW} elements", _is_small),)

INTEGER_PRODUCTS: dict[Callable[..., Any], Decomposition] = {
    aten.mm.default: Decomposition(mm, _integers, limits=_SMALL),
    aten.bmm.default: Decomposition(mm, _integers, limits=_SMALL),
    aten.mv.default: Decomposition(mv, _integers),
    aten.dot.default: Decomposition(mv, _integers),
}
