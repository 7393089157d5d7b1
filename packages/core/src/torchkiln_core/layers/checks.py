"""Checks that layers share: TensorRT networks are strongly typed and broadcast only between equal ranks."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensor

from torchkiln_core.errors import InternalError


def same_dtype(kind: str, *tensors: torch.Tensor | None) -> None:
    """Raises ``InternalError`` unless all tensors have one dtype."""
    dtypes = [tensor.dtype for tensor in tensors if tensor is not None]
    if len(set(dtypes)) > 1:
        raise InternalError(f"{kind}: expected operands of one dtype, got {', '.join(map(str, dtypes))}")


def same_rank(kind: str, *tensors: torch.Tensor) -> None:
    """Raises ``InternalError`` unless all tensors have one rank."""
    ranks = [tensor.dim() for tensor in tensors]
    if len(set(ranks)) > 1:
        raise InternalError(f"{kind}: expected operands of one rank, got {', '.join(map(str, ranks))}")


def floating(kind: str, *tensors: torch.Tensor) -> None:
    """Raises ``InternalError`` unless all tensors are fp32, fp16 or bf16."""
    for tensor in tensors:
        if tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise InternalError(f"{kind}: expected float32, float16 or bfloat16, got {tensor.dtype}")


def axis_in_range(kind: str, axis: int, rank: int) -> None:
    """Raises ``InternalError`` unless ``0 <= axis < rank``."""
    if not 0 <= axis < rank:
        raise InternalError(f"{kind}: expected an axis in [0, {rank}), got {axis}")


def is_real(tensor: torch.Tensor) -> bool:
    """Whether the tensor has data to look at."""
    return not isinstance(tensor, FakeTensor)
