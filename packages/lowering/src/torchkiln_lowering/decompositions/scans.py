"""Running maxima, minima and sums of exponentials, in as many steps as the size of the dimension has binary digits.

Each step joins every element with the one ``step`` places before it, and ``step`` doubles: an element has then seen all before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchkiln_core.call import OpCall
from torchkiln_core.rejection import Requires
from torchkiln_lowering.decompositions.numbers import number_like
from torchkiln_lowering.decompositions.pointwise import log1p_of_decay
from torchkiln_lowering.decompositions.precision import FLOATING, as_dtype, floating, widened
from torchkiln_lowering.decompositions.sorting import STATIC
from torchkiln_lowering.decompositions.table import Decomposition

aten = torch.ops.aten
Join = Callable[[Any, Any], Any]
INTEGERS = (torch.int32, torch.int64, torch.bool)


def scanned(x: torch.Tensor, dim: int, join: Join) -> Any:
    """Prefixes of ``x`` ``[*, N, *]``, joined: ``join(...join(x[0], x[1])..., x[i])`` for an associative ``join(earlier, later)``."""
    size, step = x.shape[dim], 1
    while step < size:
        earlier, later = aten.slice.Tensor(x, dim, 0, size - step), aten.slice.Tensor(x, dim, step, size)
        x = aten.cat.default([aten.slice.Tensor(x, dim, 0, step), join(earlier, later)], dim)
        step *= 2
    return x


def _seen(flags: torch.Tensor, dim: int) -> Any:
    """Whether a flag ``[*, N, *]`` is set at a place or before it."""
    return aten.gt.Scalar(aten.cumsum.default(as_dtype(flags, torch.int32), dim, dtype=torch.int32), 0)


def _running(beyond: Callable[..., Any], highest: float) -> Callable[..., Any]:
    """``cummax`` or ``cummin``: an earlier element stays where it is ``beyond`` the later one; nothing is beyond ``highest``."""

    def extreme(self: torch.Tensor, dim: int) -> tuple[Any, Any]:
        """Values and indices ``[*, N, *]``; of equal ones the last, and after a NaN the last NaN. Source: ATen/native/ReduceOps.cpp."""
        if self.dim() == 0:
            return self, aten.full.default([], 0, dtype=torch.int64, device=self.device)
        dim = dim % self.dim()
        x = as_dtype(self, torch.int32) if self.dtype == torch.bool else self
        if not x.dtype.is_floating_point:
            values = scanned(x, dim, later_if_equal)
            return as_dtype(values, self.dtype), _last(aten.eq.Tensor(x, values), dim)
        # Comparisons tell nothing of NaN, so it takes no part in them.
        nan = aten.isnan.default(x)
        keys = aten.where.self(nan, number_like(highest, x), x)
        values, poisoned = scanned(keys, dim, later_if_equal), _seen(nan, dim)
        stands = aten.where.self(poisoned, nan, aten.eq.Tensor(keys, values))
        return aten.where.self(poisoned, number_like(float("nan"), x), values), _last(stands, dim)

    def later_if_equal(earlier: torch.Tensor, later: torch.Tensor) -> Any:
        return aten.where.self(beyond(earlier, later), earlier, later)

    return extreme


def _last(flags: torch.Tensor, dim: int) -> Any:
    """The last place ``[*, N, *]`` so far whose flag is set; the first one's always is."""
    places = aten.arange.default(flags.shape[dim], dtype=torch.int32, device=flags.device)
    places = aten.view.default(places, [-1, *[1] * (flags.dim() - dim - 1)])
    return as_dtype(scanned(aten.where.self(flags, places, number_like(0, places)), dim, aten.maximum.default), torch.int64)


def logcumsumexp(self: torch.Tensor, dim: int) -> Any:
    """``logcumsumexp`` of ``[*, N, *]``. Source: ATen/native/cpu/LogAddExp.h.

    Infinities, whose difference is none, take part as the outermost finite numbers, and are added afterwards; NaN spreads by itself.
    """
    if self.dim() == 0:
        return self
    dim = dim % self.dim()
    x, infinity = widened(self), float("inf")
    limits = torch.finfo(x.dtype)
    out = scanned(aten.clamp.default(x, limits.min, limits.max), dim, _log_add_exp)
    beyond = aten.where.self(_seen(aten.eq.Scalar(x, infinity), dim), number_like(infinity, x), number_like(0, x))
    anything = _seen(aten.ne.Scalar(x, -infinity), dim)
    return as_dtype(aten.add.Tensor(out, aten.where.self(anything, beyond, number_like(-infinity, x))), self.dtype)


def _log_add_exp(earlier: torch.Tensor, later: torch.Tensor) -> Any:
    """``log(exp(earlier) + exp(later))`` of finite numbers and NaN, ``[*]``."""
    larger = aten.where.self(aten.gt.Tensor(earlier, later), earlier, later)
    return aten.add.Tensor(larger, log1p_of_decay(aten.sub.Tensor(earlier, later)))


def _is_ordered(call: OpCall) -> bool:
    return floating(call) or call.arguments["self"].meta["val"].dtype in INTEGERS


_ORDERED = (STATIC, Requires("floating-point, int32, int64 or bool elements", _is_ordered))

SCANS: dict[Callable[..., Any], Decomposition] = {
    aten.cummax.default: Decomposition(_running(aten.gt.Tensor, float("inf")), limits=_ORDERED),
    aten.cummin.default: Decomposition(_running(aten.lt.Tensor, float("-inf")), limits=_ORDERED),
    aten.logcumsumexp.default: Decomposition(logcumsumexp, limits=(STATIC, FLOATING)),
}
