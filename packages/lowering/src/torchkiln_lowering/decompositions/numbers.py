"""Numbers beside tensors, and as a kernel in float32 sees them."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

aten = torch.ops.aten


def number_like(value: float, like: torch.Tensor) -> Any:
    """A number as a tensor ``[]`` of the dtype of another, on its device."""
    return aten.full.default([], value, dtype=like.dtype, device=like.device)


def float32(number: float) -> float:
    """The nearest number that float32 holds."""
    return ctypes.c_float(number).value
