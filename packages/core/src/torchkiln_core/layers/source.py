"""Layers that make tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from torchkiln_core.errors import InternalError
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
        return steps * self.delta + self.start
