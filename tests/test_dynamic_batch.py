"""One engine for every batch size in a range: equal to eager at its smallest, its example and its largest."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from example_models import EXAMPLES, Example
from torch.utils import _pytree as pytree

import torchkiln
from torchkiln_testing import OpClass, assert_same

LARGEST, TYPICAL, SMALLEST = 8, 3, 1
OFTEN = ("t5_encoder", "gpt2", "llama", "classic_unet")
SELDOM = ("diffusion_unet", "mobilenet_v3_small", "vit_tiny_patch16_224", "convnext_tiny", "clip", "bilinear_unet")


def first(example: Example, count: int, device: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the first examples of a batch."""
    taken: tuple[tuple[Any, ...], dict[str, Any]]
    taken = pytree.tree_map(lambda leaf: leaf[:count].contiguous().to(device), (example.args, example.kwargs))
    return taken


def check_dynamic_batch(name: str, dtype: torch.dtype, engine: str, device: str) -> None:
    torch.manual_seed(0)
    example = EXAMPLES[name](dtype, LARGEST)
    model = example.model.to(device)
    args, kwargs = first(example, TYPICAL, device)
    batch = torch.export.Dim("batch", min=SMALLEST, max=LARGEST)
    names = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    compiled = torchkiln.compile(
        model,
        args,
        kwargs,
        dynamic_shapes={name: {0: batch} for name in names},
        engine=engine,
        targets=["sm_89"] if engine == "reference" else ["current"],
        require_full_compilation=True,
    )
    assert [segment.kind for segment in compiled.report.segments] == ["engine"]
    for count in (SMALLEST, TYPICAL, LARGEST):
        args, kwargs = first(example, count, device)
        with torch.no_grad():
            assert_same(model(*args, **kwargs), compiled(*args, **kwargs), OpClass.MODEL)
    args, kwargs = pytree.tree_map(lambda leaf: torch.cat([leaf, leaf]), first(example, LARGEST, device))
    with pytest.raises(torchkiln.ShapeOutOfProfile):
        compiled(*args, **kwargs)


@pytest.mark.parametrize("name", [*OFTEN, *(pytest.param(name, marks=pytest.mark.slow) for name in SELDOM)])
def test_dynamic_batch_on_the_reference_engine(name: str) -> None:
    pytest.importorskip("tensorrt_rtx")
    check_dynamic_batch(name, torch.float32, "reference", "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", [*OFTEN, *SELDOM])
def test_dynamic_batch_on_tensorrt(name: str, dtype: torch.dtype) -> None:
    check_dynamic_batch(name, dtype, "tensorrt", "cuda")
