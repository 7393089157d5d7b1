"""One engine for every batch and length in a range, and one for every size of image: equal to eager at the ends and between."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from example_models import EXAMPLES
from torch.export import Dim
from torch.utils import _pytree as pytree

import torchkiln
from torchkiln_testing import OpClass, assert_same

LARGEST = (5, 16)
"""Batch and length of the examples that the others are cut from."""
SIZES = ((1, 1), (3, 7), (5, 16), (2, 11), (4, 2))
TYPICAL = (3, 7)


def cut(example: Any, sizes: tuple[int, int], device: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of fewer and shorter texts."""
    batch, length = sizes
    taken: tuple[tuple[Any, ...], dict[str, Any]]
    taken = pytree.tree_map(lambda leaf: leaf[:batch, :length].contiguous().to(device), (example.args, example.kwargs))
    return taken


def check_language(name: str, dtype: torch.dtype, engine: str, device: str) -> None:
    torch.manual_seed(0)
    example = EXAMPLES[name](dtype, LARGEST[0])
    model = example.model.to(device)
    args, kwargs = cut(example, TYPICAL, device)
    batch, length = Dim("batch", min=1, max=LARGEST[0]), Dim("length", min=1, max=LARGEST[1])
    names = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    compiled = torchkiln.compile(
        model, args, kwargs, dynamic_shapes={name: {0: batch, 1: length} for name in names}, engine=engine, require_full_compilation=True
    )
    assert [segment.kind for segment in compiled.report.segments] == ["engine"]
    for sizes in SIZES:
        args, kwargs = cut(example, sizes, device)
        # A mask of ones: at some sizes the padded one would leave a text without a word.
        kwargs = {key: torch.ones_like(value) for key, value in kwargs.items()}
        with torch.no_grad():
            assert_same(model(*args, **kwargs), compiled(*args, **kwargs), OpClass.MODEL)
    args, kwargs = pytree.tree_map(lambda leaf: torch.cat([leaf, leaf], 1), cut(example, LARGEST, device))
    with pytest.raises(torchkiln.ShapeOutOfProfile, match=f"expected 1 to {LARGEST[1]}, got {2 * LARGEST[1]}"):
        compiled(*args, **kwargs)


class Upscale(torch.nn.Module):
    """``[N, 3, H, W] -> [N, 3, 2 * H, 2 * W]``: a small U-Net for images of any even size."""

    def __init__(self) -> None:
        super().__init__()
        self.down = torch.nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.norm = torch.nn.GroupNorm(2, 8)
        self.up = torch.nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.last = torch.nn.Conv2d(11, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        deep = torch.nn.functional.silu(self.norm(self.down(x)))
        wide = torch.cat([x, self.up(deep)], 1)
        return self.last(torch.nn.functional.interpolate(wide, scale_factor=2.0, mode="nearest"))


def check_images(dtype: torch.dtype, engine: str, device: str) -> None:
    torch.manual_seed(0)
    model = Upscale().to(device, dtype).eval()

    def image(batch: int, height: int, width: int) -> torch.Tensor:
        return torch.randn(batch, 3, 2 * height, 2 * width, device=device, dtype=dtype)

    shapes = ({0: Dim("batch", min=1, max=4), 2: 2 * Dim("height", min=2, max=13), 3: 2 * Dim("width", min=2, max=13)},)
    compiled = torchkiln.compile(model, (image(2, 5, 7),), dynamic_shapes=shapes, engine=engine, require_full_compilation=True)
    assert [segment.kind for segment in compiled.report.segments] == ["engine"]
    for sizes in ((2, 5, 7), (1, 2, 2), (4, 13, 13), (3, 11, 2), (1, 3, 13)):
        x = image(*sizes)
        with torch.no_grad():
            assert_same(model(x), compiled(x), OpClass.MODEL)
    with pytest.raises(torchkiln.ShapeOutOfProfile, match="dimension 3"):
        compiled(image(2, 5, 14))


def check_image_sizes(model: torch.nn.Module, unit: int, dtype: torch.dtype, engine: str, device: str, **kwargs: Any) -> None:
    """At every combination of smallest, typical and largest batch, height and width and a prime between, and outside of each."""
    torch.manual_seed(0)
    model = model.to(device, dtype).eval()
    batches, heights, widths = (1, 2, 3, 5), (3, 4, 5, 7), (3, 5, 6, 11)

    def image(batch: int, height: int, width: int) -> torch.Tensor:
        return torch.rand(batch, 3, unit * height, unit * width, device=device, dtype=dtype)

    dims = [Dim(name, min=min(sizes), max=max(sizes)) for name, sizes in (("batch", batches), ("height", heights), ("width", widths))]
    first = next(iter(inspect.signature(model.forward).parameters))
    shapes = {first: {0: dims[0], 2: unit * dims[1], 3: unit * dims[2]}, **dict.fromkeys(kwargs)}
    compiled = torchkiln.compile(
        model, (image(2, 3, 5),), kwargs, dynamic_shapes=shapes, engine=engine, require_full_compilation=True, min_block_size=1
    )
    assert [segment.kind for segment in compiled.report.segments] == ["engine"]
    ran = 0
    for sizes in itertools.product(batches, heights, widths):
        x = image(*sizes)
        if kwargs and not compiled.accepts((x,), kwargs):
            continue  # a branch of the model's own: it leaves its positions as they are where there are as many
        with torch.no_grad():
            assert_same(model(x, **kwargs), compiled(x, **kwargs), OpClass.MODEL)
        ran += 1
    assert ran >= 40
    for outside in ((6, 3, 5), (2, 8, 5), (2, 3, 12), (2, 3, 2)):
        with pytest.raises(torchkiln.ShapeOutOfProfile):
            compiled(image(*outside), **kwargs)


def resnet50() -> tuple[torch.nn.Module, int, dict[str, Any]]:
    return EXAMPLES["resnet50"](torch.float32, 1).model, 16, {}


def vit() -> tuple[torch.nn.Module, int, dict[str, Any]]:
    """Its learned positions are resized to the image."""
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        image_size=16 * 4,
        patch_size=16,
        return_dict=False,
    )
    model = ViTModel(config, add_pooling_layer=False)
    torch.nn.init.normal_(model.embeddings.position_embeddings)
    return model, 16, {"interpolate_pos_encoding": True}


@pytest.mark.slow
@pytest.mark.parametrize("net", [resnet50, vit])
def test_all_sizes_of_images_on_the_reference_engine(net: Callable[[], tuple[torch.nn.Module, int, dict[str, Any]]]) -> None:
    model, unit, kwargs = net()
    check_image_sizes(model, unit, torch.float32, "reference", "cpu", **kwargs)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("net", [resnet50, vit])
def test_all_sizes_of_images_on_tensorrt(net: Callable[[], tuple[torch.nn.Module, int, dict[str, Any]]], dtype: torch.dtype) -> None:
    model, unit, kwargs = net()
    check_image_sizes(model, unit, dtype, "tensorrt", "cuda", **kwargs)


@pytest.mark.parametrize("name", ["bert", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gpt2", "llama", "t5_encoder"))])
def test_language_models_on_the_reference_engine(name: str) -> None:
    check_language(name, torch.float32, "reference", "cpu")


@pytest.mark.parametrize("name", ["gpt2", *(pytest.param(name, marks=pytest.mark.slow) for name in ("llama", "bert", "t5_encoder"))])
def test_one_text_and_one_word_without_a_mask(name: str) -> None:
    """What the models ask of such sizes, they ask in other places than with a mask; both ways of each branch are the same there."""
    example = EXAMPLES[name](torch.float32, LARGEST[0])
    (words,), _ = cut(example, TYPICAL, "cpu")
    shapes = {"input_ids": {0: Dim("batch", min=1, max=LARGEST[0]), 1: Dim("length", min=1, max=LARGEST[1])}}
    compiled = torchkiln.compile(example.model, (words,), dynamic_shapes=shapes, engine="reference")
    for batch, length in SIZES:
        args = (words.repeat(2, 3)[:batch, :length],)
        with torch.no_grad():
            assert_same(example.model(*args), compiled(*args), OpClass.MODEL)


def test_images_on_the_reference_engine() -> None:
    check_images(torch.float32, "reference", "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5_encoder"])
def test_language_models_on_tensorrt(name: str, dtype: torch.dtype) -> None:
    check_language(name, dtype, "tensorrt", "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_images_on_tensorrt(dtype: torch.dtype) -> None:
    check_images(dtype, "tensorrt", "cuda")
