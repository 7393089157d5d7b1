"""``torchkiln.Input``: a tensor argument described by its shapes instead of an example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import Dim


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor argument ``[*]``: either ``shape``, or ``min_shape``, ``opt_shape`` and ``max_shape`` of one rank.

    Raises:
        ValueError: Missing or contradicting shapes, a size that is none, or an unknown device.
        TypeError: ``dtype`` is not a ``torch.dtype``.
    """

    shape: tuple[int, ...] | None = None
    dtype: torch.dtype = torch.float32
    min_shape: tuple[int, ...] | None = None
    opt_shape: tuple[int, ...] | None = None
    max_shape: tuple[int, ...] | None = None
    device: str | torch.device | None = None

    def __post_init__(self) -> None:
        for name in ("shape", "min_shape", "opt_shape", "max_shape"):
            shape = getattr(self, name)
            if shape is not None and not (isinstance(shape, (tuple, list)) and all(type(size) is int and size >= 0 for size in shape)):
                raise ValueError(f"Input: {name}: expected a tuple of sizes, each an integer of at least 0, got {shape!r}")
        if not isinstance(self.dtype, torch.dtype):
            raise TypeError(f"Input: dtype: expected a torch.dtype, got {self.dtype!r}")
        if self.device is not None:
            _check_device(self.device)
        ranged = (self.min_shape, self.opt_shape, self.max_shape)
        if (self.shape is None) == any(part is None for part in ranged):
            raise ValueError(f"Input: expected shape, or min_shape, opt_shape and max_shape, got shape={self.shape} and {ranged}")
        if self.shape is None and not all(low <= opt <= high for low, opt, high in self._dims()):
            raise ValueError(f"Input: expected min_shape <= opt_shape <= max_shape in one rank, got {ranged}")

    def _dims(self) -> list[tuple[int, int, int]]:
        parts = [tuple(part or ()) for part in (self.min_shape, self.opt_shape, self.max_shape)]
        if len({len(part) for part in parts}) != 1:
            raise ValueError(f"Input: expected min_shape, opt_shape and max_shape of one rank, got {parts}")
        return list(zip(*parts, strict=True))

    def example(self) -> torch.Tensor:
        """A tensor of the opt shape: ones, which are valid indices for most embeddings.

        Raises:
            ValueError: No such tensor can be made here.
        """
        shape = self.shape if self.shape is not None else self.opt_shape
        try:
            return torch.ones(shape, dtype=self.dtype, device=self.device)  # type: ignore[arg-type]
        except (RuntimeError, AssertionError) as error:
            # A torch without CUDA asserts that it has it.
            raise ValueError(f"Input: expected a {self.dtype} tensor {shape} on {self.device} to be possible here, got: {error}") from error

    def dynamic_dims(self, name: str) -> dict[int, Any]:
        """``torch.export.Dim`` of each dimension whose min and max differ."""
        if self.shape is not None:
            return {}
        return {dim: Dim(f"{name}_{dim}", min=low, max=high) for dim, (low, _, high) in enumerate(self._dims()) if low != high}


def _check_device(device: str | torch.device) -> None:
    try:
        torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"Input: device: expected a device such as 'cuda', got {device!r}") from error


def examples_of(inputs: Sequence[Input | torch.Tensor]) -> tuple[tuple[torch.Tensor, ...], tuple[Any, ...] | None]:
    """Example arguments and ``dynamic_shapes`` for a list of inputs.

    Raises:
        TypeError: Not a list, or an item that is neither an ``Input`` nor a tensor.
    """
    if not isinstance(inputs, (list, tuple)):
        raise TypeError(f"inputs: expected a list of torchkiln.Input and tensors, got {type(inputs).__name__}")
    args: list[torch.Tensor] = []
    shapes: list[Any] = []
    for index, item in enumerate(inputs):
        if isinstance(item, Input):
            args.append(item.example())
            shapes.append(item.dynamic_dims(f"input{index}"))
        elif isinstance(item, torch.Tensor):
            args.append(item)
            shapes.append({})
        else:
            raise TypeError(f"inputs[{index}]: expected torchkiln.Input or a tensor, got {type(item).__name__}")
    return tuple(args), tuple(shapes) if any(shapes) else None
