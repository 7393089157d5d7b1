"""Programs that call the kernels of attention by their own names run them in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchkiln
from torchkiln_testing import OpClass, assert_same

pytestmark = pytest.mark.gpu
aten = torch.ops.aten


def flash(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
    sizes: dict[str, Any] = {"cum_seq_q": None, "cum_seq_k": None, "max_q": query.shape[1], "max_k": key.shape[1]}
    return aten._flash_attention_forward(query, key, value, **sizes, dropout_p=0.0, is_causal=False, return_debug_mask=False)[:2]


def efficient(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
    sizes: dict[str, Any] = {"cu_seqlens_q": None, "cu_seqlens_k": None, "max_seqlen_q": None, "max_seqlen_k": None}
    return aten._efficient_attention_forward(query, key, value, bias=None, **sizes, dropout_p=0.0, custom_mask_type=0)[0]


@pytest.mark.parametrize("kernel", [flash, efficient])
@pytest.mark.parametrize("entry", ["compile", "backend"])
def test_they_run(kernel: Callable[..., Any], entry: str, fresh_dynamo: None) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = ((4, 11, 4, 8), (4, 32, 4, 8), (4, 32, 4, 8))
    args = tuple(torch.randn(shape, generator=generator, dtype=torch.half, device="cuda") for shape in shapes)
    options: dict[str, Any] = {"engine": "tensorrt", "min_block_size": 1}
    if entry == "compile":
        got = torchkiln.compile(kernel, args, **options)(*args)
    else:
        got = torch.compile(kernel, backend="torchkiln", options=options)(*args)
    assert_same(kernel(*args), got, OpClass.MATMUL)
