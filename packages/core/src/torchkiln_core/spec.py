"""Descriptions of tensors at a border: dtype and shape with the ranges of dynamic dimensions."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True)
class DimRange:
    """A dynamic dimension: one symbol (or expression over symbols) and the sizes it may take.

    ``assumed`` says that ``max`` is a default, since nothing bounds the dimension above.

    Raises:
        ValueError: Not ``0 <= min <= opt <= max``.
    """

    symbol: str
    min: int
    opt: int
    max: int
    assumed: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.min <= self.opt <= self.max:
            raise ValueError(f"dimension {self.symbol}: expected 0 <= min <= opt <= max, got {self.min}, {self.opt}, {self.max}")


Dim = int | DimRange


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, dtype and shape ``[*]`` of a tensor that crosses a border."""

    name: str
    dtype: torch.dtype
    shape: tuple[Dim, ...]

    @property
    def min_shape(self) -> tuple[int, ...]:
        """The smallest size of every dimension."""
        return tuple(dim if isinstance(dim, int) else dim.min for dim in self.shape)

    @property
    def opt_shape(self) -> tuple[int, ...]:
        """The size of every dimension that the engine is tuned for."""
        return tuple(dim if isinstance(dim, int) else dim.opt for dim in self.shape)

    @property
    def max_shape(self) -> tuple[int, ...]:
        """The largest size of every dimension."""
        return tuple(dim if isinstance(dim, int) else dim.max for dim in self.shape)
