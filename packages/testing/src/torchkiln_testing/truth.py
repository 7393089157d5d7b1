"""Eager PyTorch as what engines are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def eager_truth() -> Iterator[None]:
    """Eager without TF32 in convolutions, which is no truth for fp32, and without cuDNN's attention.

    Of a row that a bool mask hides whole, cuDNN's attention gives values of no meaning, where all other kernels of PyTorch give 0.
    """
    cudnn_attention = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(cudnn_attention)
