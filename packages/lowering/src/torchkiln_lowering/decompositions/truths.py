"""Order among truth values, which engines have for numbers only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchkiln_core.call import OpCall
from torchkiln_core.rejection import Requires
from torchkiln_lowering.decompositions.precision import as_dtype
from torchkiln_lowering.decompositions.table import Decomposition

aten = torch.ops.aten


def _is_bool(call: OpCall) -> bool:
    return bool(call.arguments["self"].meta["val"].dtype == torch.bool)


_DIMENSIONS = Requires("truth values of at least one dimension", lambda call: bool(call.arguments["self"].meta["val"].dim() > 0))


def _of_truths(function: Callable[..., Any]) -> Decomposition:
    return Decomposition(function, _is_bool, limits=(_DIMENSIONS,))


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
    aten.amax.default: _of_truths(any_of),
    aten.amin.default: _of_truths(all_of),
    aten.max.default: _of_truths(_whole(aten.max.default)),
    aten.min.default: _of_truths(_whole(aten.min.default)),
    aten.max.dim: _of_truths(_with_index(aten.max.dim)),
    aten.min.dim: _of_truths(_with_index(aten.min.dim)),
}
