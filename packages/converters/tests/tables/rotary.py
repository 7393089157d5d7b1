"""Rows of rotary embedding."""

from __future__ import annotations

import torch
import torch.onnx.ops

from torchkiln_testing import OpCase, OpClass

ROTARY = torch.ops.onnx.RotaryEmbedding.opset23
GENERATOR = torch.Generator().manual_seed(0)


def rand(*shape):
    return torch.randn(*shape, generator=GENERATOR)


def rotary(*args, dynamic=(), weights=(), **kwargs):
    return OpCase(ROTARY, args, kwargs, dynamic, weights, OpClass.MATMUL)


X, FLAT = rand(2, 3, 5, 8), rand(2, 5, 24)
TABLES, FEWER = (rand(2, 5, 4), rand(2, 5, 4)), (rand(2, 5, 3), rand(2, 5, 3))
LONG = (rand(7, 4), rand(7, 4))
PLACES = torch.tensor([[0, 6, 2, 3, 4], [-1, 1, -7, 5, 5]])
MOVING = ((0, 0), (0, 2), *((table, dim) for table in (1, 2) for dim in (0, 1)))

CASES = [
    rotary(X, *TABLES),
    rotary(X, *TABLES, interleaved=True, num_heads=3),
    rotary(X, *TABLES, dynamic=MOVING),
    rotary(X, *FEWER, rotary_embedding_dim=6, dynamic=MOVING),
    rotary(X, *FEWER, rotary_embedding_dim=6, interleaved=True),
    rotary(X, *LONG, PLACES),
    rotary(X, *LONG, PLACES.int(), interleaved=True, weights=(1, 2)),
    rotary(X, *(table[:, :3] for table in LONG), PLACES, rotary_embedding_dim=6, dynamic=((0, 0), (0, 2), (3, 0), (3, 1))),
    rotary(FLAT, *TABLES, num_heads=3),
    rotary(FLAT, *FEWER, num_heads=3, rotary_embedding_dim=6, interleaved=True),
    rotary(FLAT, *TABLES, num_heads=3, dynamic=((0, 0), (0, 1), *MOVING[2:])),
    rotary(FLAT, *LONG, PLACES, num_heads=3),
]
