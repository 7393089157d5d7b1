"""Reductions of a dynamic dimension that may be empty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim

import torchkiln
from torchkiln_testing import OpClass, assert_same

T = torch.Tensor

REDUCTIONS: dict[str, Callable[[T], Any]] = {
    "any": lambda x: x.any(1),
    "any of all": lambda x: (x > 0).any(),
    "any of dims": lambda x: torch.any(x, (0, 1), keepdim=True),
    "all": lambda x: x.all(1),
    "all of all": lambda x: (x > 0).all(),
    "all of dims": lambda x: torch.all(x, (0, 1), keepdim=True),
    "sum": lambda x: x.sum(1),
    "sum of integers": lambda x: (x * 4).to(torch.int64).sum(1),
    "prod": lambda x: x.prod(1),
    "mean": lambda x: x.mean(1),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=1),
    "softmax": lambda x: torch.softmax(x, 1),
    "cumulative sum": lambda x: x.cumsum(1),
    "product of matrices": lambda x: x @ x.mT,
}


def check(name: str, device: str, **options: Any) -> None:
    function = REDUCTIONS[name]
    table = torch.tensor([[0.0, 1.5, -2.0, 0.25], [-1.0, -0.5, -3.0, -2.5], [0.0, 0.0, 0.0, 0.0]], device=device)
    shapes = ({1: Dim("n", min=0, max=4)},)
    compiled = torchkiln.compile(function, (table,), dynamic_shapes=shapes, min_block_size=1, require_full_compilation=True, **options)
    for size in (4, 0, 2, 1, 0):
        assert_same(function(table[:, :size]), compiled(table[:, :size]), OpClass.REDUCTION)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_equals_eager_on_the_reference_engine(name: str) -> None:
    check(name, "cpu", engine="reference", targets=["sm_89"])


@pytest.mark.gpu
@pytest.mark.parametrize("name", REDUCTIONS)
def test_equals_eager_on_tensorrt(name: str) -> None:
    check(name, "cuda", engine="tensorrt")
