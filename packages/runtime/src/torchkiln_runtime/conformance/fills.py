"""What the operands of rows hold."""

from __future__ import annotations

import math

import torch

from torchkiln_runtime.conformance.row import Fill

EDGE_COUNT = 24
"""Number of edge values of a dtype."""

_FLOAT_EDGES = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.75, -3.75, 1e-3, 10.0, -10.0, 88.5, -88.5, 100.25, 0.9990234375)
_INTEGER_EDGES = (0, 1, -1, 2, -2, 3, -3, 5, 7, -7, 10, 31, -31, 64, 100, -100, 127, -128, 255, 1000, -1000, 46340, 1 << 24, -(1 << 24))


def edge_values(dtype: torch.dtype) -> torch.Tensor:
    """``[EDGE_COUNT]``: zeros of both signs, ties of rounding, infinities, NaN, largest and smallest; small integers and powers."""
    if dtype is torch.bool:
        return torch.arange(EDGE_COUNT) % 2 == 1
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return torch.tensor([min(max(value, info.min), info.max) for value in _INTEGER_EDGES], dtype=dtype)
    finfo = torch.finfo(dtype)
    special = (math.nan, math.inf, -math.inf, finfo.max, finfo.min, finfo.tiny)
    return torch.tensor((*_FLOAT_EDGES, *special), dtype=torch.float64).to(dtype)


def edges(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Edge values, over and over."""
    return edge_values(dtype).repeat(math.prod(shape) // EDGE_COUNT + 1)[: math.prod(shape)].reshape(shape)


def one_zero(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Floating edge values without -0.0."""
    values = edges(shape, dtype, generator)
    return torch.where(values == 0, torch.zeros_like(values), values)


def ordered(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Floating edge values without NaN and -0.0, of which any two different ones are unequal."""
    return one_zero(shape, dtype, generator).nan_to_num(nan=0.0, posinf=math.inf, neginf=-math.inf)


def random(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Normally distributed floats, integers in [-20, 20], or random bools."""
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0 if dtype is torch.uint8 else -20, 21, shape, generator=generator).to(dtype)


def positive(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Floats in [0.5, 2) or integers in [1, 9]."""
    if dtype.is_floating_point:
        return (torch.rand(shape, generator=generator) * 1.5 + 0.5).to(dtype)
    return torch.randint(1, 10, shape, generator=generator).to(dtype)


def divisors(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Edge values without the integers 0, by which division is undefined."""
    values = edges(shape, dtype, generator)
    return values if dtype.is_floating_point else torch.where(values == 0, torch.full_like(values, 3), values)


def ties(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Few different values, so that many are equal."""
    return torch.randint(0, 3, shape, generator=generator).to(dtype)


def in_range(low: float, high: float) -> Fill:
    """Multiples of 1/4 in ``[low, high]``."""

    def fill(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
        return (torch.randint(int(low * 4), int(high * 4) + 1, shape, generator=generator) / 4).to(dtype)

    return fill


def uniform(low: float, high: float) -> Fill:
    """Floats in ``[low, high)``."""

    def fill(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
        return (torch.rand(shape, generator=generator) * (high - low) + low).to(dtype)

    return fill


def below(bound: int) -> Fill:
    """Indices in ``[0, bound)``."""

    def fill(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
        return torch.randint(0, bound, shape, generator=generator).to(dtype)

    return fill


def distinct(dim: int, bound: int) -> Fill:
    """Indices in ``[0, bound)`` that differ along ``dim``."""

    def fill(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
        lines = [size for axis, size in enumerate(shape) if axis != dim]
        picks = [torch.randperm(bound, generator=generator)[: shape[dim]] for _ in range(math.prod(lines))]
        return torch.stack(picks).reshape(*lines, shape[dim]).movedim(-1, dim).contiguous().to(dtype)

    return fill


def with_infinities(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Random floats whose first row is all ``-inf`` and whose every third column is ``-inf``, as masks make them."""
    values = random(shape, dtype, generator)
    values[..., ::3] = -math.inf
    values[0] = -math.inf
    return values
