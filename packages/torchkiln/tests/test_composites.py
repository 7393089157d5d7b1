"""``torch.compile`` keeps composite operators whole, and those that converters refuse are decomposed, as ahead of time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchkiln
from torchkiln_testing import OpClass, assert_same

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
F = torch.nn.functional
CALLS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "matmul of integers": (torch.matmul, (torch.arange(12).reshape(3, 4), torch.arange(-6, 6).reshape(4, 3))),
    "batches of integers": (torch.matmul, (torch.arange(24).reshape(2, 3, 4), torch.arange(-12, 12).reshape(2, 4, 3))),
    "conv2d without a batch": (F.conv2d, (torch.randn(2, 5, 6), torch.randn(3, 2, 2, 3))),
    "conv_transpose2d without a batch": (F.conv_transpose2d, (torch.randn(2, 5, 6), torch.randn(2, 3, 2, 3))),
    "one_hot": (lambda x: F.one_hot(x, 7), (torch.arange(6).reshape(2, 3),)),
    "bilinear": (F.bilinear, (torch.randn(3, 2), torch.randn(3, 4), torch.randn(5, 2, 4))),
    "adaptive_max_pool1d": (lambda x: F.adaptive_max_pool1d(x, 3), (torch.randn(2, 2, 7),)),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_a_converter_refuses_is_decomposed(name: str, jit: Callable[..., Any], reports: list[torchkiln.Report]) -> None:
    function, args = CALLS[name]
    assert_same(function(*args), jit(function)(*args), OpClass.MATMUL)
    assert [segment.kind for segment in reports[0].segments] == ["engine"]
    assert not reports[0].rejections


def test_a_training_batch_norm_still_updates_its_statistics(jit: Callable[..., Any]) -> None:
    norm, other = torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2)
    x = torch.randn(4, 2, 5)
    with torch.no_grad():
        assert_same(norm(x), jit(other)(x), OpClass.REDUCTION)
    assert_same(dict(norm.named_buffers()), dict(other.named_buffers()), OpClass.REDUCTION)
