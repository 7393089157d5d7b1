"""The checks of an engine's inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch

from torchkiln_core import Binding, PlanError
from torchkiln_runtime.shapes import Shapes

ALIGNMENT = 256
"""Bytes that TensorRT wants tensors aligned to; torch's allocator gives 512, a view into a tensor anything."""


@dataclass(frozen=True, slots=True)
class StaticInputs:
    """Inputs whose shapes are all fixed: the quick way through the checks for tensors that are right already.

    Attributes:
        shapes: ``[*]`` of each input.
        expected: Dtype and shape of each.
        index: Of their GPU.
    """

    shapes: Shapes
    expected: tuple[tuple[torch.dtype, tuple[int, ...]], ...]
    index: int

    @classmethod
    def of(cls, bindings: Sequence[Binding], device: torch.device) -> Self | None:
        """``None`` where a size is symbolic."""
        shapes = tuple(tuple(size for size in binding.shape if isinstance(size, int)) for binding in bindings)
        if any(len(shape) != len(binding.shape) for shape, binding in zip(shapes, bindings, strict=True)):
            return None
        return cls(shapes, tuple((binding.dtype, shape) for binding, shape in zip(bindings, shapes, strict=True)), device.index or 0)

    def addresses(self, inputs: Sequence[torch.Tensor]) -> list[int] | None:
        """Where the inputs lie; ``None`` when one is wrong or must be copied first, or has no elements."""
        if len(inputs) != len(self.expected):
            return None
        found = []
        for tensor, (dtype, shape) in zip(inputs, self.expected, strict=True):
            address = tensor.data_ptr()
            if (
                tensor.dtype is not dtype
                or tensor.shape != shape
                or tensor.get_device() != self.index
                or not tensor.is_contiguous()
                or address % ALIGNMENT != 0
                or address == 0
            ):
                return None
            found.append(address)
        return found


def check_inputs(bindings: Sequence[Binding], inputs: Sequence[torch.Tensor], device: torch.device | None) -> None:
    """Checks the number, dtypes and devices of inputs; ``device`` is where all must be, ``None`` for wherever the first is.

    Raises:
        PlanError: One differs from what the engine was built for.
    """
    if len(inputs) != len(bindings):
        raise PlanError(f"engine: expected {len(bindings)} inputs, got {len(inputs)}")
    for binding, tensor in zip(bindings, inputs, strict=True):
        device = device or tensor.device
        if tensor.dtype is not binding.dtype:
            raise PlanError(
                f"input {binding.name!r}: expected {binding.dtype}, got {tensor.dtype}",
                fix=f"pass it as {binding.dtype}, or compile again with example inputs of the new dtype",
            )
        if tensor.device != device:
            raise PlanError(f"input {binding.name!r}: expected it on {device}, got {tensor.device}", fix=f"move it to {device}")
