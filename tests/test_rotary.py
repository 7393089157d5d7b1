"""Rotary embeddings as models write them: elementwise calls in one engine, with the roundings of eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import torchkiln
from torchkiln_testing import OpClass, assert_same

LENGTH, WIDTH = 6, 8


def _angles() -> torch.Tensor:
    return torch.outer(torch.arange(float(LENGTH)), 10000 ** -torch.linspace(0, 1, WIDTH // 2 + 1)[:-1])


def halves(x: torch.Tensor) -> torch.Tensor:
    """As Llama writes it: the features ``i`` and ``i + WIDTH / 2`` are a pair."""
    table = torch.cat([_angles(), _angles()], -1)
    cos, sin = table.cos().to(x.dtype), table.sin().to(x.dtype)
    turned = torch.cat([-x[..., WIDTH // 2 :], x[..., : WIDTH // 2]], -1)
    return x * cos + turned * sin


def pairs(x: torch.Tensor) -> torch.Tensor:
    """As GPT-J writes it: neighbours are a pair."""
    cos, sin = (item.to(x.dtype).repeat_interleave(2, -1) for item in (_angles().cos(), _angles().sin()))
    turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    return x * cos + turned * sin


def turns(x: torch.Tensor) -> torch.Tensor:
    """As the first Llama wrote it: products of complex numbers."""
    table = torch.polar(torch.ones(LENGTH, WIDTH // 2), _angles())
    y = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2)) * table
    return torch.view_as_real(y).flatten(-2).type_as(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("form", [halves, pairs, turns], ids=lambda form: form.__name__)
def test_rotary_embedding(form: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0)).to(dtype)
    compiled = torchkiln.compile(form, (x,), engine="reference", require_full_compilation=True)
    assert [segment.kind for segment in compiled.report.segments] == ["engine"]
    # Every rounding is that of eager: nothing is raised to a layer that rounds once.
    assert_same(form(x), compiled(x), OpClass.EXACT if form is not turns else OpClass.POINTWISE)
