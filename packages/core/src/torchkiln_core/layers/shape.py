"""Layers that change how a tensor is seen, or read its shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from torchkiln_core.errors import InternalError
from torchkiln_core.layers.checks import is_real
from torchkiln_core.network import Layer


@dataclass(frozen=True, slots=True)
class Shuffle(Layer):
    """Transposes by ``first``, reshapes, transposes by ``second``; each part is optional. Source: TensorRT operator page "Shuffle".

    The shape comes from ``dims`` (one may be -1) or from a size operand. 0 means a dimension of size 0, never a placeholder.
    """

    first: tuple[int, ...] | None = None
    dims: tuple[int, ...] | None = None
    second: tuple[int, ...] | None = None

    shape_operands: ClassVar[tuple[int, ...]] = (1,)

    def run(self, input: torch.Tensor, shape: Sequence[int] | None = None) -> torch.Tensor:
        """``[*] -> [*]``."""
        if self.dims is not None and shape is not None:
            raise InternalError("Shuffle: expected dims or a shape operand, got both")
        result = input if self.first is None else input.permute(self.first)
        target = self.dims if shape is None else shape
        if target is not None:
            result = result.reshape(tuple(target)) if is_real(input) else result.new_empty(_reshaped(result.shape, target))
        return result if self.second is None else result.permute(self.second)


def _reshaped(shape: Sequence[int], target: Sequence[int | torch.SymInt]) -> tuple[int | torch.SymInt, ...]:
    """The shape of ``reshape``, which on fake tensors guards on symbolic sizes to choose between a view and a copy."""
    total = math.prod(shape)
    # A symbolic size is never -1, and asking it might be a guard.
    free = [index for index, size in enumerate(target) if isinstance(size, int) and size == -1]
    known = math.prod(size for index, size in enumerate(target) if index not in free)
    if len(free) > 1 or (total != known if not free else known == 0 or total % known != 0):
        raise InternalError(f"Shuffle: expected a shape of {total} elements, got {list(target)}")
    return tuple(total // known if index in free else size for index, size in enumerate(target))


@dataclass(frozen=True, slots=True)
class Shape(Layer):
    """The shape of a tensor. Source: TensorRT operator page "Shape"."""

    def run(self, input: torch.Tensor) -> torch.Tensor:
        """``[*] -> int64 [rank]``."""
        if not is_real(input):
            return input.new_empty(input.dim(), dtype=torch.int64)
        return torch.tensor(input.shape, dtype=torch.int64, device=input.device)
