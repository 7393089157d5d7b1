"""Parts of a tensor that are broadcast against it, with a reduction behind them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.export import Dim

import torchkiln
from torchkiln_testing import OpClass, assert_same

T = torch.Tensor
F = torch.nn.functional


def first(x: T) -> T:
    return x[:, :1]


def second(x: T) -> T:
    return x[:, 1:2]


def gray(image: T) -> T:
    """``[N, 3, *] -> [N, 3, *]``: how each channel differs from the brightness."""
    return image - (0.3 * image[:, :1] + 0.6 * image[:, 1:2] + 0.1 * image[:, 2:])


PARTS: dict[str, Callable[[T, T], T]] = {
    "difference": lambda x, _: x - first(x),
    "difference, reversed": lambda x, _: first(x) - x,
    "sum": lambda x, _: x + first(x),
    "product": lambda x, _: x * first(x),
    "quotient": lambda x, _: x / (first(x).abs() + 1),
    "largest": lambda x, _: torch.maximum(x, first(x)),
    "second": lambda x, _: x * second(x),
    "last": lambda x, _: x - x[:, -1:],
    "rest": lambda x, _: x[:, 1:] - first(x),
    "every other": lambda x, _: x[:, ::2] - first(x),
    "first row": lambda x, _: x - x[:1],
    "corner": lambda x, _: x - x[:1, :1],
    "number": lambda x, _: x * x[0, 0].exp(),
    "column": lambda x, _: x - x[:, 0].unsqueeze(1),
    "column, transposed": lambda x, _: (x.T - x[:, 0]).T,
    "column by column": lambda x, _: x[:, 0][:, None] - x[:, 0][None],
    "two": lambda x, _: x - (first(x) + second(x)),
    "product of two": lambda x, _: x * (first(x) * second(x)),
    "twice": lambda x, w: (x - first(x)) * (w - second(x)),
    "of another": lambda x, w: x - first(w),
    "of both": lambda x, w: x * w - first(x) * first(w),
    "of the same": lambda x, _: torch.sin(x) - first(torch.sin(x)),
    "of a softmax": lambda x, _: x.softmax(1) - first(x.softmax(1)),
    "exponential": lambda x, _: x * torch.exp(first(x)),
    "rounded": lambda x, _: x - first(x).half().to(x.dtype),
    "joined": lambda x, _: x - torch.cat([first(x)] * x.shape[1], 1),
    "joined, scaled": lambda x, _: x[:, :2] - torch.cat([first(x), first(x) * 2], 1),
    "stacked": lambda x, _: x[:, :2] * torch.stack([x[:, 0], x[:, 0]], 1),
    "repeated": lambda x, _: x - first(x).repeat(1, x.shape[1]),
    "expanded": lambda x, _: x - first(x).expand_as(x),
    "multiplied by ones": lambda x, _: x - first(x) @ torch.ones(1, x.shape[1], dtype=x.dtype, device=x.device),
    "compared": lambda x, w: torch.where(x > first(x), x, w),
    "selected": lambda x, _: torch.where(x > 0, x, first(x)),
    "fused": lambda x, w: torch.addcmul(x, first(x), second(w)),
    "power": lambda x, _: x.abs() ** first(x).abs(),
    "integers": lambda x, _: (x * 8).to(torch.int64) - first((x * 8).to(torch.int64)),
    "conditions": lambda x, _: ((x > 0) ^ first(x > 0)).to(x.dtype),
    "channels": lambda x, w: gray(torch.stack([x, w, x * w], 1)).flatten(1),
}
OUTER: dict[str, Callable[[T], T]] = {
    "sum": lambda y: y.sum(),
    "over rows": lambda y: y.sum(0),
    "over columns": lambda y: y.sum(1),
    "largest": lambda y: y.amax(0),
    "softmax": lambda y: y.float().softmax(0),
    "deviation": lambda y: y.float().std(0),
    "layer norm": lambda y: F.layer_norm(y.float(), y.shape),
}


class Reduced(torch.nn.Module):
    """``[N, C], [N, C] -> [*]``: the outer function of the inner one."""

    def __init__(self, inner: str, outer: str) -> None:
        super().__init__()
        self.inner, self.outer = PARTS[inner], OUTER[outer]

    def forward(self, x: T, w: T) -> T:
        return self.outer(self.inner(x, w))


def values(shape: tuple[int, int], device: str, dtype: torch.dtype = torch.float32) -> tuple[T, T]:
    x, w = (((torch.arange(shape[0] * shape[1]) * step) % 23 - 11).reshape(shape) / 8 for step in (7, 5))
    return x.to(device, dtype), w.to(device, dtype)


def check(names: tuple[str, str], args: tuple[T, T], engine: str) -> None:
    model = Reduced(*names)
    compiled = torchkiln.compile(model, args, engine=engine, min_block_size=1, require_full_compilation=True)
    assert_same(model(*args), compiled(*args), OpClass.MODEL)


ALL = [pytest.param((inner, outer), id=f"{inner}, {outer}") for inner in PARTS for outer in OUTER]
SUMS = [pytest.param((inner, "over rows"), id=inner) for inner in PARTS]


@pytest.mark.parametrize("names", SUMS)
def test_equals_eager_on_the_reference_engine(names: tuple[str, str]) -> None:
    check(names, values((16, 4), "cpu"), "reference")


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(2, 3), (16, 100)], ids=str)
@pytest.mark.parametrize("names", SUMS)
def test_equals_eager_on_tensorrt(names: tuple[str, str], shape: tuple[int, int]) -> None:
    check(names, values(shape, "cuda"), "tensorrt")


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("names", ALL)
def test_equals_eager_before_every_reduction(names: tuple[str, str]) -> None:
    check(names, values((64, 4), "cuda"), "tensorrt")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("inner", ["difference", "first row", "two", "joined", "of another"])
def test_equals_eager_in_half_precision(inner: str, dtype: torch.dtype) -> None:
    check((inner, "over rows"), values((64, 4), "cuda", dtype), "tensorrt")


@pytest.mark.gpu
@pytest.mark.parametrize("inner", ["difference", "first row", "two", "column", "product"])
def test_dynamic_sizes_and_a_static_engine_for_a_hot_shape(inner: str) -> None:
    model, args = Reduced(inner, "over rows"), values((64, 4), "cuda")
    rows = Dim("rows", min=2, max=1000)
    compiled = torchkiln.compile(
        model,
        args,
        dynamic_shapes={"x": {0: rows}, "w": {0: rows}},
        engine="tensorrt",
        min_block_size=1,
        require_full_compilation=True,
        specialize=2,
    )
    for count in (2, 17, 1000, 64, 64, 64):
        assert_same(model(*values((count, 4), "cuda")), compiled(*values((count, 4), "cuda")), OpClass.MODEL)
    assert compiled.wait_for_static_engines(120)
    assert "serving" in [item.state for item in compiled.report.static_engines]
    assert_same(model(*args), compiled(*args), OpClass.MODEL)
