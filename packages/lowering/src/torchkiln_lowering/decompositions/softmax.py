"""Softmax and its relatives: the maximum is taken off first, sums are fp32 for half inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchkiln_lowering.decompositions.precision import FLOATING, as_dtype, widened
from torchkiln_lowering.decompositions.table import Decomposition

aten = torch.ops.aten


def softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """``_softmax``: a row of ``-inf`` gives NaN, as in eager. Source: ATen/native/SoftMax.cpp."""
    wide = widened(x)
    powers = aten.exp.default(aten.sub.Tensor(wide, aten.amax.default(wide, [dim], True)))
    out = aten.div.Tensor(powers, aten.sum.dim_IntList(powers, [dim], True))
    return out if half_to_float else as_dtype(out, x.dtype)


def log_softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    """``_log_softmax``."""
    wide = widened(x)
    shifted = aten.sub.Tensor(wide, aten.amax.default(wide, [dim], True))
    total = aten.sum.dim_IntList(aten.exp.default(shifted), [dim], True)
    out = aten.sub.Tensor(shifted, aten.log.default(total))
    return out if half_to_float else as_dtype(out, x.dtype)


def safe_softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    """``_safe_softmax``: a row of ``-inf`` gives zeros. Source: ATen/native/transformers/attention.cpp."""
    x = x if dtype is None else as_dtype(x, dtype)
    peak = aten.amax.default(x, [dim], True)
    masked = aten.eq.Scalar(peak, float("-inf"))
    out = aten._softmax.default(x, dim, False)
    return aten.where.self(masked, aten.full.default([], 0.0, dtype=x.dtype, device=x.device), out)


def logsumexp(x: torch.Tensor, dim: Sequence[int], keepdim: bool = False) -> torch.Tensor:
    """``logsumexp``: infinite maxima are not taken off, so that ``-inf`` rows give ``-inf`` and ``inf`` gives ``inf``."""
    wide = widened(x)
    dims = list(dim) or list(range(x.dim()))
    peak = aten.amax.default(wide, dims, True)
    infinite = aten.eq.Scalar(aten.abs.default(peak), float("inf"))
    peak = aten.where.self(infinite, aten.full.default([], 0.0, dtype=wide.dtype, device=x.device), peak)
    total = aten.sum.dim_IntList(aten.exp.default(aten.sub.Tensor(wide, peak)), dims, keepdim)
    peak = peak if keepdim else aten.squeeze.dims(peak, dims)
    return as_dtype(aten.add.Tensor(aten.log.default(total), peak), x.dtype)


SOFTMAX: dict[Callable[..., Any], Decomposition] = {
    aten._softmax.default: Decomposition(softmax, limits=(FLOATING,)),
    aten._log_softmax.default: Decomposition(log_softmax, limits=(FLOATING,)),
    aten._safe_softmax.default: Decomposition(safe_softmax, limits=(FLOATING,)),
    aten.logsumexp.default: Decomposition(logsumexp, limits=(FLOATING,)),
}
