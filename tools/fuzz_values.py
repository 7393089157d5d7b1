"""What the calls of made-up programs make of any tensor first, so that an operator takes it and that eager leaves it no choice.

Numbers stay small, so that they make little of a rounding, and what an element decides, it decides on a side of ``EDGE``.
"""

from __future__ import annotations

import functools
import random

import torch

T = torch.Tensor
F = torch.nn.functional
EDGE = 0.37
"""No multiple of a quarter, of which the arguments are."""


def as_float(x: T) -> T:
    """``x``, or its numbers in float32."""
    return x if x.is_floating_point() else x.to(torch.float32)


def as_number(x: T) -> T:
    """``x``, or its truths as integers."""
    return x.to(torch.int64) if x.dtype is torch.bool else x


def bounded(x: T) -> T:
    """Keeps numbers small, so that no rounding grows and no integer overflows."""
    return as_number(x).clamp(-64, 64)


def small(x: T) -> T:
    """Float32 numbers for a call that adds products."""
    return as_float(x).clamp(-8, 8)


def truths(x: T) -> T:
    """Which elements are large."""
    return x if x.dtype is torch.bool else x > EDGE


def whole(x: T) -> T:
    """Small integers: those of ``x``, or whether its elements are large."""
    return x.clamp(-64, 64) if x.dtype in (torch.int32, torch.int64) else truths(x).to(torch.int64)


def index(x: T, limit: int) -> T:
    """Int64 indices below ``limit``, in the shape of ``x``."""
    return whole(x).to(torch.int64).abs() % limit


def apart(x: T) -> T:
    """Numbers whose sign no rounding decides."""
    return x - EDGE if x.is_floating_point() else as_number(x)


def holed(x: T) -> T:
    """Float32 numbers with NaN in the place of some."""
    return as_float(x).masked_fill(as_float(x) < -1.63, float("nan"))


def filled(x: T) -> T:
    """Numbers in the place of NaN and infinities."""
    return x.nan_to_num(5.5, 6.5, -6.5)


def like(y: T, x: T) -> T:
    """``y`` in the dtype of ``x``."""
    return y.to(x.dtype) if x.is_floating_point() else truths(y) if x.dtype is torch.bool else whole(y).to(x.dtype)


@functools.cache
def _drawn(shape: tuple[int, ...]) -> tuple[float, ...]:
    chosen = random.Random(str(shape))
    return tuple(chosen.randint(-32, 32) / 32 for _ in range(torch.Size(shape).numel()))


def weights(*shape: int) -> T:
    """Random float32 constants of a shape, the same in every run."""
    return torch.tensor(_drawn(shape)).reshape(shape)
