"""The dtype in which eager PyTorch computes inside a fused kernel."""

from __future__ import annotations

import torch

from torchkiln_core.call import OpCall
from torchkiln_core.rejection import Requires

aten = torch.ops.aten


def widened(x: torch.Tensor) -> torch.Tensor:
    """``x`` ``[*]`` in the dtype that kernels accumulate in: fp32 for fp16 and bf16. Source: ATen/OpMathType.h."""
    return as_dtype(x, torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x


def as_dtype(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``x`` ``[*]`` as ``dtype``, without a call when it already is."""
    return x if x.dtype == dtype else aten._to_copy.default(x, dtype=dtype)


def floating(call: OpCall) -> bool:
    """Whether the first tensor argument is real floating point."""
    first = next(iter(call.arguments.values()))
    return isinstance(value := first.meta["val"], torch.Tensor) and value.dtype.is_floating_point


FLOATING = Requires("floating-point elements", floating)
"""The limit of decompositions of real floating-point functions."""
