"""Scratch memory that the engines of one stream share: each overwrites what the one before it left, as the stream orders them."""

from __future__ import annotations

import threading
from weakref import WeakValueDictionary

import torch


class Scratch:
    """Scratch memory of one stream, as large as the most that one of its engines needs.

    Args:
        device: The GPU.

    Attributes:
        lock: Held while work that uses the memory is put on the stream, so that two threads do not mix the kernels of two engines.
    """

    def __init__(self, device: torch.device) -> None:
        self.lock = threading.Lock()
        self._device = device
        self._bytes = 0
        self._memory: torch.Tensor | None = None

    def reserve(self, size: int) -> None:
        """Announces a user of ``size`` bytes, before any of it is used."""
        with self.lock:
            self._bytes = max(self._bytes, size)

    def memory(self) -> torch.Tensor:
        """The memory, uint8 ``[N]``, for who holds the lock; another tensor than before when a larger user was announced since."""
        if self._memory is None or self._memory.numel() < self._bytes:
            # What was captured with the memory before keeps it until it is captured anew.
            self._memory = torch.empty(self._bytes, dtype=torch.uint8, device=self._device)
        return self._memory


_of_streams: WeakValueDictionary[tuple[torch.device, int], Scratch] = WeakValueDictionary()
_lock = threading.Lock()


def scratch_of(device: torch.device, stream: int) -> Scratch:
    """The scratch memory of the stream with this handle, which lives as long as one of its users."""
    with _lock:
        scratch = _of_streams.get((device, stream))
        if scratch is None:
            scratch = _of_streams[device, stream] = Scratch(device)
        return scratch
