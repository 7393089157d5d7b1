"""Layers that make tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from torchkiln_core.errors import InternalError
from torchkiln_core.layers.checks import is_real
from torchkiln_core.network import Layer


@dataclass(frozen=True, slots=True, eq=False)
class Constant(Layer):
    """A tensor ``[*]`` known when the engine is built, held by reference. Source: TensorRT operator page "Constant"."""

    tensor: torch.Tensor

    def run(self) -> torch.Tensor:
        """The tensor itself."""
        return self.tensor

    def __repr__(self) -> str:
        return f"Constant({str(self.tensor.dtype).removeprefix('torch.')}{list(self.tensor.shape)})"


@dataclass(frozen=True, slots=True)
class Linspace(Layer):
    """``start + i * delta`` for a shape ``[n]`` given as a size operand. Source: TensorRT operator page "Fill", kLINSPACE.

    ``dtype`` is int32, int64 or float32; start and delta are attributes.
    """

    start: int | float
    delta: int | float
    dtype: torch.dtype

    shape_operands: ClassVar[tuple[int, ...]] = (0,)

    def run(self, shape: Sequence[int]) -> torch.Tensor:
        """``[n]``."""
        if not self.dtype.is_floating_point and not (isinstance(self.start, int) and isinstance(self.delta, int)):
            raise InternalError(f"Linspace: expected integers for {self.dtype}, got {self.start} and {self.delta}")
        if len(shape) != 1:
            raise InternalError(f"Linspace: expected a shape of rank 1, got rank {len(shape)}")
        steps = torch.arange(shape[0], dtype=self.dtype)
        # Of a symbolic size, arithmetic would ask whether it is 1.
        return steps * self.delta + self.start if is_real(steps) else steps


def _random(kind: str, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """An empty float32 tensor to be filled, of rank 1 or more."""
    if dtype not in (torch.float32, torch.float16) or not shape:
        raise InternalError(f"{kind}: expected float32 or float16 of rank 1 or more, got {dtype} of rank {len(shape)}")
    return torch.empty(tuple(shape), dtype=torch.float32)


@dataclass(frozen=True, slots=True)
class RandomUniform(Layer):
    """Random numbers between ``low`` and ``high`` for a shape given as a size operand.

    Source: TensorRT operator page "Fill", kRANDOM_UNIFORM.

    ``dtype`` is float32 or float16. Engines draw different numbers: only dtype, shape and distribution are defined.
    """

    low: float
    high: float
    dtype: torch.dtype

    shape_operands: ClassVar[tuple[int, ...]] = (0,)

    def run(self, shape: Sequence[int]) -> torch.Tensor:
        """``[*]``."""
        if self.low > self.high:
            raise InternalError(f"RandomUniform: expected low <= high, got {self.low} and {self.high}")
        return _random("RandomUniform", self.dtype, shape).uniform_(self.low, self.high).to(self.dtype)


@dataclass(frozen=True, slots=True)
class RandomNormal(Layer):
    """Normally distributed random numbers for a shape given as a size operand.

    Source: TensorRT operator page "Fill", kRANDOM_NORMAL.

    ``dtype`` is float32 or float16. Engines draw different numbers: only dtype, shape and distribution are defined.
    """

    mean: float
    deviation: float
    dtype: torch.dtype

    shape_operands: ClassVar[tuple[int, ...]] = (0,)

    def run(self, shape: Sequence[int]) -> torch.Tensor:
        """``[*]``."""
        if self.deviation < 0:
            raise InternalError(f"RandomNormal: expected a standard deviation of 0 or more, got {self.deviation}")
        return _random("RandomNormal", self.dtype, shape).normal_(self.mean, self.deviation).to(self.dtype)
