"""Order among truth values, which engines have for numbers only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchkiln_core.call import OpCall
from torchkiln_lowering.decompositions.precision import as_dtype
from torchkiln_lowering.decompositions.table import Decomposition

aten = torch.ops.aten


def _is_bool(call: OpCall) -> bool:
    value = call.arguments["self"].meta["val"]
    return bool(value.dtype == torch.bool and value.dim() > 0)


def any_of(self: torch.Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    """``amax`` of truth values ``[*]``: whether any is true."""
    return as_dtype(aten.amax.default(as_dtype(self, torch.int32), list(dim), keepdim), torch.bool)


def all_of(self: torch.Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    """``amin`` of truth values ``[*]``: whether all are true."""
    return as_dtype(aten.amin.default(as_dtype(self, torch.int32), list(dim), keepdim), torch.bool)


def _with_index(operator: Callable[..., Any]) -> Callable[..., Any]:
    def extreme(self: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
        """The extreme truth value ``[*]`` and its index."""
        values, indices = operator(as_dtype(self, torch.int32), dim, keepdim)
        return as_dtype(values, torch.bool), indices

    return extreme


def _whole(operator: Callable[..., Any]) -> Callable[..., Any]:
    def extreme(self: torch.Tensor) -> Any:
        """The extreme truth value ``[*] -> []``."""
        return as_dtype(operator(as_dtype(self, torch.int32)), torch.bool)

    return extreme


TRUTHS: dict[Callable[..., Any], Decomposition] = {
    aten.amax.default: Decomposition(any_of, _is_bool),
    aten.amin.default: Decomposition(all_of, _is_bool),
    aten.max.default: Decomposition(_whole(aten.max.default), _is_bool),
    aten.min.default: Decomposition(_whole(aten.min.default), _is_bool),
    aten.max.dim: Decomposition(_with_index(aten.max.dim), _is_bool),
    aten.min.dim: Decomposition(_with_index(aten.min.dim), _is_bool),
}
