"""Host memory that is given back to the system early: a build frees several times the weights, and the C library keeps what it gets."""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable
from typing import Any

import torch

_PAGE_OUT = 21  # MADV_PAGEOUT of Linux 5.4 and later; it loses nothing, whatever kind of memory it is told of


def return_freed() -> None:
    """Returns what the process has freed, where the C library can (glibc)."""
    trim = _function("malloc_trim")
    if trim is not None:
        trim(ctypes.c_size_t(0))


def page_out(tensor: torch.Tensor) -> None:
    """Tells the system that a host tensor ``[*]`` is not read soon; pages of a file leave memory, others stay."""
    advise = _function("madvise")
    first = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if advise is not None and last > first:
        advise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), ctypes.c_int(_PAGE_OUT))


@functools.cache
def _function(name: str) -> Callable[..., Any] | None:
    try:
        return getattr(ctypes.CDLL(None), name, None)
    except (OSError, TypeError):  # no C library of that kind, as on Windows
        return None
