"""Core operators that stay in PyTorch on purpose, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_RANDOM = "random numbers of an engine would differ from PyTorch's generator, and its seed would have no effect"
_TRAINING = "part of a backward pass, which runs in PyTorch"
_FFT = "TensorRT has no layer for Fourier transforms"
_DATA = "the size of the result depends on data, which TensorRT-RTX has no layers for"
_STORAGE = "asks how a tensor is stored, which engines do not keep"

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "aten._adaptive_avg_pool2d_backward.default": _TRAINING,
        "aten.avg_pool2d_backward.default": _TRAINING,
        "aten.convolution_backward.default": _TRAINING,
        "aten.embedding_dense_backward.default": _TRAINING,
        "aten.max_pool2d_with_indices_backward.default": _TRAINING,
        "aten.native_group_norm_backward.default": _TRAINING,
        "aten.native_layer_norm_backward.default": _TRAINING,
        "aten._native_batch_norm_legit.default": "batch normalization in training updates its statistics, which runs in PyTorch",
        "aten._fft_c2c.default": _FFT,
        "aten._fft_c2r.default": _FFT,
        "aten._fft_r2c.default": _FFT,
        "aten._local_scalar_dense.default": "reads a number from the GPU, which ends the graph",
        "aten.nonzero.default": _DATA,
        "aten.resize_.default": "changes the memory of a tensor, of which an engine has none",
        "aten.native_dropout.default": _RANDOM,
        "aten.rand.default": _RANDOM,
        "aten.randn.default": _RANDOM,
        "aten.randperm.default": _RANDOM,
        "aten.sym_storage_offset.default": _STORAGE,
        "aten.sym_stride.int": _STORAGE,
    }
)
"""By name of the operator."""
