"""Pointwise functions that lose digits when written naively. Half inputs are computed in fp32, as eager kernels do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from torchkiln_core.call import OpCall
from torchkiln_lowering.decompositions.precision import as_dtype, floating, widened
from torchkiln_lowering.decompositions.table import Decomposition, used_outputs

aten = torch.ops.aten


def _only_first(call: OpCall) -> bool:
    return floating(call) and used_outputs(call.node) in (frozenset(), frozenset({0}))


def _both_floating(call: OpCall) -> bool:
    left, right = (call.arguments[name].meta["val"].dtype for name in ("self", "other"))
    return bool(left == right and left.is_floating_point)


def log1p(x: torch.Tensor) -> torch.Tensor:
    """``log1p`` as ``2 atanh(x / (2 + x))`` near 0, where ``1 + x`` would round."""
    wide = widened(x)
    near = aten.mul.Scalar(aten.atanh.default(aten.div.Tensor(wide, aten.add.Scalar(wide, 2.0))), 2.0)
    far = aten.log.default(aten.add.Scalar(wide, 1.0))
    return as_dtype(aten.where.self(aten.lt.Scalar(aten.abs.default(wide), 0.5), near, far), x.dtype)


def expm1(x: torch.Tensor) -> torch.Tensor:
    """``expm1`` as ``2 t / (1 - t)`` with ``t = tanh(x / 2)`` near 0, where ``exp(x) - 1`` would cancel."""
    wide = widened(x)
    half = aten.tanh.default(aten.mul.Scalar(wide, 0.5))
    near = aten.div.Tensor(aten.mul.Scalar(half, 2.0), aten.add.Scalar(aten.neg.default(half), 1.0))
    far = aten.sub.Scalar(aten.exp.default(wide), 1.0)
    return as_dtype(aten.where.self(aten.lt.Scalar(aten.abs.default(wide), 0.5), near, far), x.dtype)


def log1p_of_decay(x: torch.Tensor) -> Any:
    """``log(1 + exp(-|x|))``, exact to the last bits for every ``x``: the argument of atanh is at most 1/3."""
    decay = aten.exp.default(aten.neg.default(aten.abs.default(x)))
    return aten.mul.Scalar(aten.atanh.default(aten.div.Tensor(decay, aten.add.Scalar(decay, 2.0))), 2.0)


def softplus(x: torch.Tensor, beta: float = 1, threshold: float = 20) -> torch.Tensor:
    """``softplus`` that neither overflows nor vanishes. Source: ATen/native/cpu/Activation.cpp."""
    wide = widened(x)
    scaled = aten.mul.Scalar(wide, beta)
    soft = aten.div.Scalar(aten.add.Tensor(aten.relu.default(scaled), log1p_of_decay(scaled)), beta)
    return as_dtype(aten.where.self(aten.gt.Scalar(scaled, threshold), wide, soft), x.dtype)


def log_sigmoid(x: torch.Tensor) -> tuple[torch.Tensor, None]:
    """``log_sigmoid_forward`` without its buffer: ``min(x, 0) - log(1 + exp(-|x|))``."""
    wide = widened(x)
    negative = aten.neg.default(aten.relu.default(aten.neg.default(wide)))
    return as_dtype(aten.sub.Tensor(negative, log1p_of_decay(wide)), x.dtype), None


def mish(x: torch.Tensor) -> torch.Tensor:
    """``mish``: ``x tanh(softplus(x))``."""
    wide = widened(x)
    soft = aten.add.Tensor(aten.relu.default(wide), log1p_of_decay(wide))
    return as_dtype(aten.mul.Tensor(wide, aten.tanh.default(soft)), x.dtype)


def gelu(x: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """``gelu``, both forms. Source: ATen/native/cpu/Gelu.h."""
    wide = widened(x)
    if approximate == "tanh":
        cube = aten.mul.Tensor(aten.mul.Tensor(wide, wide), wide)
        inner = aten.mul.Scalar(aten.add.Tensor(wide, aten.mul.Scalar(cube, 0.044715)), math.sqrt(2.0 / math.pi))
        gate = aten.tanh.default(inner)
    else:
        gate = aten.erf.default(aten.mul.Scalar(wide, math.sqrt(0.5)))
    return as_dtype(aten.mul.Tensor(aten.mul.Scalar(wide, 0.5), aten.add.Scalar(gate, 1.0)), x.dtype)


def logaddexp(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``logaddexp``: two equal infinities give themselves. Source: ATen/native/cpu/BinaryOpsKernel.cpp."""
    left, right = widened(x), widened(other)
    peak = aten.maximum.default(left, right)
    soft = aten.add.Tensor(peak, log1p_of_decay(aten.sub.Tensor(left, right)))
    infinite = aten.logical_and.default(aten.eq.Tensor(left, right), aten.eq.Scalar(aten.abs.default(left), float("inf")))
    return as_dtype(aten.where.self(infinite, peak, soft), x.dtype)


def exp2(x: torch.Tensor) -> Any:
    """``exp2``."""
    return aten.pow.Scalar(2.0, x)


def hypot(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """``hypot``, scaled by the larger side, whose square would overflow; an infinite side wins over NaN."""
    left, right = (aten.abs.default(widened(item)) for item in (x, other))
    long, short = aten.maximum.default(left, right), aten.minimum.default(left, right)
    ratio = aten.where.self(aten.eq.Scalar(long, 0.0), short, aten.div.Tensor(short, long))
    out = aten.mul.Tensor(long, aten.sqrt.default(aten.add.Scalar(aten.mul.Tensor(ratio, ratio), 1.0)))
    infinite = aten.logical_or.default(aten.eq.Scalar(left, float("inf")), aten.eq.Scalar(right, float("inf")))
    return as_dtype(aten.where.self(infinite, aten.full.default([], float("inf"), dtype=out.dtype, device=out.device), out), x.dtype)


def signbit(x: torch.Tensor) -> Any:
    """``signbit`` of integers."""
    return aten.lt.Scalar(x, 0)


def _is_integer(call: OpCall) -> bool:
    dtype = call.arguments["self"].meta["val"].dtype
    return not dtype.is_floating_point and dtype != torch.bool


POINTWISE: dict[Callable[..., Any], Decomposition] = {
    aten.log1p.default: Decomposition(log1p, floating),
    aten.expm1.default: Decomposition(expm1, floating),
    aten.softplus.default: Decomposition(softplus, floating),
    aten.log_sigmoid_forward.default: Decomposition(log_sigmoid, _only_first),
    aten.mish.default: Decomposition(mish, floating),
    aten.gelu.default: Decomposition(gelu, floating),
    aten.exp2.default: Decomposition(exp2, floating),
    aten.hypot.default: Decomposition(hypot, _both_floating),
    aten.signbit.default: Decomposition(signbit, _is_integer),
    aten.logaddexp.default: Decomposition(logaddexp, _both_floating),
}
