"""The bytes of host tensors without NumPy and without a copy."""

from __future__ import annotations

import ctypes

import torch

CHUNK_BYTES = 1 << 24


def memory_of(tensor: torch.Tensor) -> memoryview:
    """Writable bytes of a contiguous host tensor ``[*]``; valid while the tensor lives."""
    count = tensor.numel() * tensor.element_size()
    if count == 0:
        return memoryview(bytearray())
    return memoryview((ctypes.c_char * count).from_address(tensor.data_ptr())).cast("B")


def storage_bytes(tensor: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Bytes ``start`` to ``stop`` of a tensor's storage, uint8 ``[stop - start]`` on its device, not a copy."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage(), start, (stop - start,), (1,))
