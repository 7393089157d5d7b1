"""State that a model keeps in its buffers: written back as eager writes it, over repeated calls of one compiled module."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import torchkiln
from torchkiln_testing import OpClass, assert_same


class Cache(nn.Module):
    """Keys and values of past steps, one more in every call, and attention over all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 24)
        self.register_buffer("keys", torch.zeros(1, 2, 6, 4))
        self.register_buffer("values", torch.zeros(1, 2, 6, 4))
        self.register_buffer("place", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (part.view(1, 1, 2, 4).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        self.keys.index_copy_(2, self.place, key)
        self.values.index_copy_(2, self.place, value)
        seen = torch.arange(6)[None, None, None] <= self.place
        self.place += 1
        return nn.functional.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=seen).flatten(1)


class Rolling(nn.Module):
    """A window over the last inputs, written by slices."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.zeros(4, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.window[:-1] = self.window[1:].clone()
        self.window[-1] = x.mean((0, 1))
        return self.window.sum(0) + x


class Running(nn.Module):
    """Batch normalization that keeps learning its statistics, and one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.learning, self.fixed = nn.BatchNorm1d(8, momentum=0.3), nn.BatchNorm1d(8)

    def train(self, mode: bool = True) -> Running:
        super().train(mode)
        self.learning.train()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fixed(self.learning(x[0])) * 2


@pytest.mark.parametrize("entry", ["compile", "backend"])
@pytest.mark.parametrize("make", [Cache, Rolling, Running], ids=lambda make: make.__name__)
def test_state_is_written_back(make: Callable[[], nn.Module], entry: str) -> None:
    torch.manual_seed(0)
    eager = make().eval()
    model = copy.deepcopy(eager)
    inputs = [torch.randn(1, 1 if make is Cache else 5, 8) for _ in range(4)]
    with torch.no_grad():
        if entry == "compile":
            compiled = torchkiln.compile(model, (inputs[0],), engine="reference", min_block_size=1)
            assert "engine" in [segment.kind for segment in compiled.report.segments]
        else:
            torch._dynamo.reset()
            compiled = torch.compile(model, backend="torchkiln", options={"engine": "reference", "min_block_size": 1})
        for x in inputs:
            assert_same(eager(x), compiled(x), OpClass.MATMUL)
            assert_same(dict(eager.named_buffers()), dict(model.named_buffers()), OpClass.MATMUL)
