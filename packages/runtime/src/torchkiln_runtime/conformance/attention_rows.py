"""Rows of the layers of transformers."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from torchkiln_core.layers import Attention, CausalMask, KVCacheUpdate, RotaryEmbedding
from torchkiln_runtime.conformance.fills import below, random, uniform
from torchkiln_runtime.conformance.row import FLOATS, Operand, Row, Shape, apply

_RELAXED = 16
"""Factor on the tolerance of products."""


def attention_rows() -> Iterator[Row]:
    """Attention, rotary embedding and the update of caches."""
    for dtype in FLOATS:
        yield from _attentions(dtype)
    for dtype in FLOATS:
        yield from _rotations(dtype)
    for dtype in FLOATS:
        operands = (
            Operand(("n", 2, 16, 8), dtype, random),
            Operand(("n", 2, "m", 8), dtype, random),
            Operand(("n",), torch.int32, below(10)),
        )
        yield Row("KVCacheUpdate", "places", dtype, operands, apply(KVCacheUpdate()), exact=True)


def _seeing(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """A random mask in which every query sees the last key."""
    mask = torch.rand(shape, generator=generator) < 0.5
    mask[..., -1] = True
    return mask


def _blind(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """A mask in which the first query sees nothing and the others all."""
    mask = torch.ones(shape, dtype=torch.bool)
    mask[..., 0, :] = False
    return mask


def _attentions(dtype: torch.dtype) -> Iterator[Row]:
    upper, lower = CausalMask.UPPER_LEFT, CausalMask.LOWER_RIGHT
    cases: tuple[tuple[str, Shape, Shape, CausalMask], ...] = (
        ("plain", ("n", 4, "k", 16), ("n", 4, "m", 16), CausalMask.NONE),
        ("grouped heads", ("n", 4, 6, 16), ("n", 2, 6, 16), CausalMask.NONE),
        ("one key head", ("n", 4, 6, 16), ("n", 1, 6, 16), CausalMask.NONE),
        ("8 features", ("n", 2, 5, 8), ("n", 2, 7, 8), CausalMask.NONE),
        ("long", (1, 2, 130, 64), (1, 2, 200, 64), CausalMask.NONE),
        ("causal square", ("n", 2, "k", 16), ("n", 2, "k", 16), upper),
        ("causal upper left", ("n", 2, "k", 16), ("n", 2, 12, 16), upper),
        ("causal lower right", ("n", 2, "k", 16), ("n", 2, 12, 16), lower),
        ("causal long", (1, 2, 130, 64), (1, 2, 130, 64), upper),
    )
    for case, query, key, causal in cases:
        operands = tuple(Operand(shape, dtype, random) for shape in (query, key, key))
        yield Row("Attention", case, dtype, operands, apply(Attention(causal)), relaxed=_RELAXED)
    masks: tuple[tuple[str, Operand], ...] = (
        ("bool mask", Operand(("n", 4, "k", 7), torch.bool, _seeing)),
        ("bool mask for all heads", Operand(("n", 1, "k", 7), torch.bool, _seeing)),
        ("bool mask of keys", Operand(("n", 1, 1, 7), torch.bool, _seeing)),
        ("added mask", Operand((1, 4, "k", 7), dtype, random)),
        ("bool mask that hides all", Operand((1, 1, "k", 7), torch.bool, _blind)),
    )
    for case, mask in masks:
        operands = tuple(Operand(shape, dtype, random) for shape in (("n", 4, "k", 16), ("n", 4, 7, 16), ("n", 4, 7, 16)))
        yield Row("Attention", case, dtype, (*operands, mask), apply(Attention()), relaxed=_RELAXED)


def _rotations(dtype: torch.dtype) -> Iterator[Row]:
    angle = uniform(-1, 1)
    for case, layer, angles in (
        ("halves", RotaryEmbedding(interleaved=False), 4),
        ("interleaved", RotaryEmbedding(interleaved=True), 4),
        ("some features", RotaryEmbedding(interleaved=False, dim=6), 3),
        ("some features interleaved", RotaryEmbedding(interleaved=True, dim=4), 2),
    ):
        operands = (Operand(("n", 3, "m", 8), dtype, random), *(Operand(("n", "m", angles), dtype, angle) for _ in range(2)))
        yield Row("RotaryEmbedding", case, dtype, operands, apply(layer), relaxed=4, absolute=4)
    for index in (torch.int64, torch.int32):
        operands = (
            Operand(("n", 3, "m", 8), dtype, random),
            *(Operand((20, 4), dtype, angle) for _ in range(2)),
            Operand(("n", "m"), index, below(20)),
        )
        case = f"positions {str(index).removeprefix('torch.')}"
        yield Row("RotaryEmbedding", case, dtype, operands, apply(RotaryEmbedding(interleaved=False)), relaxed=4, absolute=4)
