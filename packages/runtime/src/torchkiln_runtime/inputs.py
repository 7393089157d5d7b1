"""The checks of an engine's inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch

from torchkiln_core import Binding, PlanError
from torchkiln_runtime.results import ResultForm
from torchkiln_runtime.shapes import Shapes

ALIGNMENT = 256
"""Bytes that TensorRT wants tensors aligned to; torch's allocator gives 512, a view into a tensor anything."""


@dataclass(frozen=True, slots=True)
class KnownInputs:
    """Inputs of one set of shapes: the quick way through the checks for tensors that are right already.

    Attributes:
        shapes: ``[*]`` of each input.
        expected: Dtype and shape of each.
        index: Of their GPU.
        results: The results at these shapes.
    """

    shapes: Shapes
    expected: tuple[tuple[torch.dtype, tuple[int, ...]], ...]
    index: int
    results: ResultForm

    @classmethod
    def of(cls, bindings: Sequence[Binding], shapes: Shapes, device: torch.device, results: ResultForm) -> Self:
        """Inputs of these shapes."""
        expected = tuple((binding.dtype, shape) for binding, shape in zip(bindings, shapes, strict=True))
        return cls(shapes, expected, device.index or 0, results)

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


def static_shapes(bindings: Sequence[Binding]) -> Shapes | None:
    """``[*]`` of each input; ``None`` where a size is symbolic."""
    shapes = tuple(tuple(size for size in binding.shape if isinstance(size, int)) for binding in bindings)
    return None if any(len(shape) != len(binding.shape) for shape, binding in zip(shapes, bindings, strict=True)) else shapes


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
