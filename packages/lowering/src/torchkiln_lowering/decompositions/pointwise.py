"""Pointwise functions that lose digits when written naively. Half inputs are computed in fp32, as eager kernels do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from torchkiln_core.call import OpCall
from torchkiln_core.rejection import Requires
from torchkiln_lowering.decompositions.precision import FLOATING, as_dtype, widened
from torchkiln_lowering.decompositions.table import ONLY_FIRST, Decomposition

aten = torch.ops.aten


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
    """``signbit``: of a zero, the sign of its reciprocal. NaN counts as positive, whichever sign it has."""
    if x.dtype == torch.bool:
        return aten.full_like.default(x, False)
    if not x.dtype.is_floating_point:
        return aten.lt.Scalar(x, 0)
    return aten.lt.Scalar(aten.where.self(aten.eq.Scalar(x, 0.0), aten.reciprocal.default(x), x), 0.0)


def copysign(self: torch.Tensor, other: torch.Tensor | float) -> Any:
    """``copysign``; integers are converted to floats. Source: ATen/native/BinaryOps.cpp, where a sign is that of ``other`` converted."""
    dtype = torch.result_type(self, other)
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    magnitude = aten.abs.default(as_dtype(self, dtype))
    if not isinstance(other, torch.Tensor):
        return aten.neg.default(magnitude) if math.copysign(1.0, other) < 0 else magnitude
    minus, plus = (aten.full.default([], sign, dtype=dtype, device=self.device) for sign in (-1.0, 1.0))
    # By a product: a negated zero lost its sign in an engine.
    return aten.mul.Tensor(magnitude, aten.where.self(signbit(as_dtype(other, dtype)), minus, plus))


_ERFC = (
    1.2769783735275269,
    -0.0927640050649643,
    -0.166031613945961,
    0.164055734872818,
    -0.05420219525694847,
    -0.008061118423938751,
    0.008623776957392693,
    0.0013122918317094445,
    -0.0012204860104247928,
    -0.00039500248384593295,
)
"""``(1 + 2 x) exp(x^2) erfc(x)`` for ``0 <= x <= 10.6`` in rising powers of ``(x - 2) / (x + 2)``: a minimax fit, within 1.6e-8 of it."""


def erfc(x: torch.Tensor) -> torch.Tensor:
    """``erfc`` with the same relative error everywhere, of some units in the last place, until it underflows.

    ``exp(-x^2)`` of a rounded square would lose digits in proportion to the square. So ``x`` is a multiple of 1/16, whose square is exact,
    and a rest; and half of the exact square is taken out twice, so that only the last product underflows.
    """
    wide = as_dtype(x, torch.float32)
    size = aten.abs.default(wide)
    # From here on all is 0 (or 2), also at infinity. NaN stays.
    size = aten.where.self(aten.gt.Scalar(size, 11.0), aten.full_like.default(size, 11.0), size)
    coarse = aten.div.Scalar(aten.floor.default(aten.mul.Scalar(size, 16.0)), 16.0)
    rest = aten.mul.Tensor(aten.sub.Tensor(size, coarse), aten.add.Tensor(size, coarse))
    root = aten.exp.default(aten.mul.Scalar(aten.mul.Tensor(coarse, coarse), -0.5))
    scaled = aten.div.Tensor(_erfc_polynomial(size), aten.add.Scalar(aten.mul.Scalar(size, 2.0), 1.0))
    tail = aten.mul.Tensor(aten.mul.Tensor(aten.mul.Tensor(scaled, aten.exp.default(aten.neg.default(rest))), root), root)
    mirrored = aten.add.Scalar(aten.neg.default(tail), 2.0)
    return as_dtype(aten.where.self(aten.lt.Scalar(wide, 0.0), mirrored, tail), x.dtype if x.dtype.is_floating_point else torch.float32)


def _erfc_polynomial(size: torch.Tensor) -> Any:
    place = aten.div.Tensor(aten.sub.Scalar(size, 2.0), aten.add.Scalar(size, 2.0))
    total = aten.add.Scalar(aten.mul.Scalar(place, _ERFC[-1]), _ERFC[-2])
    for coefficient in reversed(_ERFC[:-2]):
        total = aten.add.Scalar(aten.mul.Tensor(total, place), coefficient)
    return total


_ENGINE_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def _gives_floats(call: OpCall) -> bool:
    return call.outputs[0].dtype in _ENGINE_FLOATS


_FLOATING = (FLOATING,)
_BOTH_FLOATING = (Requires("two tensors of one floating-point dtype", _both_floating),)
_GIVES_FLOATS = (Requires("a result of float32, float16 or bfloat16", _gives_floats),)
_KNOWN = Requires("a known number", lambda call: isinstance(call.arguments["other"], (int, float)))


POINTWISE: dict[Callable[..., Any], Decomposition] = {
    aten.log1p.default: Decomposition(log1p, limits=_FLOATING),
    aten.expm1.default: Decomposition(expm1, limits=_FLOATING),
    aten.softplus.default: Decomposition(softplus, limits=_FLOATING),
    aten.log_sigmoid_forward.default: Decomposition(log_sigmoid, limits=(FLOATING, ONLY_FIRST)),
    aten.mish.default: Decomposition(mish, limits=_FLOATING),
    aten.gelu.default: Decomposition(gelu, limits=_FLOATING),
    aten.exp2.default: Decomposition(exp2, limits=_FLOATING),
    aten.hypot.default: Decomposition(hypot, limits=_BOTH_FLOATING),
    aten.signbit.default: Decomposition(signbit),
    aten.copysign.Tensor: Decomposition(copysign, limits=_GIVES_FLOATS),
    aten.copysign.Scalar: Decomposition(copysign, limits=(*_GIVES_FLOATS, _KNOWN)),
    aten.erfc.default: Decomposition(erfc, limits=_GIVES_FLOATS),
    aten.logaddexp.default: Decomposition(logaddexp, limits=_BOTH_FLOATING),
}
