"""Reductions and products of a few elements that meet these elements again, with a reduction over another axis behind them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim

import torchkiln
from torchkiln_testing import OpClass, assert_same

T = torch.Tensor
F = torch.nn.functional

SHAPES: dict[str, tuple[tuple[int, ...], int, tuple[int, ...]]] = {
    "two rows": ((2, 3), 1, (0, 1)),
    "two columns": ((1000, 2), 1, (0, 1)),
    "over rows": ((3, 64), 0, (1,)),
    "over columns": ((64, 4), 1, (0,)),
    "inside": ((64, 2, 3), 1, (0, 2)),
    "channels": ((8, 3, 16, 16), 1, (2, 3)),
    "rank 8": ((2, 1, 2, 1, 16, 1, 2, 3), 2, (0, 1, 4)),
}
"""The shape of both arguments, the axis with few elements, and the axes behind it."""


def by_matrix(x: T, dim: int, columns: int) -> T:
    matrix = torch.linspace(-1, 1, x.shape[dim] * columns, dtype=x.dtype, device=x.device)
    return (x.movedim(dim, -1) @ matrix.reshape(x.shape[dim], columns)).movedim(-1, dim)


def by_vector(x: T, dim: int) -> T:
    vector = torch.linspace(-1, 1, x.shape[dim], dtype=x.dtype, device=x.device)
    return (x.movedim(dim, -1) @ vector).unsqueeze(dim)


INNER: dict[str, Callable[[T, int], T]] = {
    "mean": lambda x, dim: x - x.mean(dim, keepdim=True),
    "sum": lambda x, dim: x - x.sum(dim, keepdim=True) / 4,
    "prod": lambda x, dim: x - x.prod(dim, keepdim=True) / 8,
    "largest": lambda x, dim: x - x.amax(dim, keepdim=True),
    "norm": lambda x, dim: x / (x.norm(dim=dim, keepdim=True) + 1),
    "softmax": torch.softmax,
    "log_softmax": torch.log_softmax,
    "layer_norm": lambda x, dim: F.layer_norm(x.movedim(dim, -1), x.shape[dim : dim + 1]).movedim(-1, dim),
    "mean, dropped": lambda x, dim: x - x.mean(dim).unsqueeze(dim),
    "largest, dropped": lambda x, dim: x - x.amax(dim).unsqueeze(dim),
    "norm, dropped": lambda x, dim: x / (x.norm(dim=dim).unsqueeze(dim) + 1),
    "deviation": lambda x, dim: x / (x.std(dim).unsqueeze(dim) + 1),
    "positive": lambda x, dim: x * (x > 0).sum(dim).unsqueeze(dim),
    "cosine": lambda x, dim: x * F.cosine_similarity(x, x.square(), dim).unsqueeze(dim),
    "by a vector": lambda x, dim: x - by_vector(x, dim),
    "by a column": lambda x, dim: x - by_matrix(x, dim, 1),
    "by a matrix": lambda x, dim: x - by_matrix(x, dim, x.shape[dim]),
}
OUTER: dict[str, Callable[[T, tuple[int, ...]], T]] = {
    "sum": lambda y, dims: y.sum(dims),
    "squares": lambda y, dims: y.square().mean(dims),
    "largest": lambda y, dims: y.amax(dims),
    "softmax": lambda y, dims: torch.softmax(y, dims[0]),
}


class Nested(torch.nn.Module):
    """``[*], [*] -> [*]``: the inner function of the first argument, times the second, and the outer function of that."""

    def __init__(self, inner: str, outer: str, dim: int, dims: tuple[int, ...]) -> None:
        super().__init__()
        self.inner, self.outer, self.dim, self.dims = INNER[inner], OUTER[outer], dim, dims

    def forward(self, x: T, weights: T) -> T:
        return self.outer(self.inner(x, self.dim) * weights, self.dims)


def values(shape: tuple[int, ...], device: str, dtype: torch.dtype = torch.float32) -> tuple[T, T]:
    count = int(torch.Size(shape).numel())
    x, weights = (((torch.arange(count) * step) % 23 - 11).reshape(shape) / 8 for step in (7, 5))
    return x.to(device, dtype), weights.to(device, dtype)


def check(names: tuple[str, str, str], device: str, dtype: torch.dtype = torch.float32, **options: Any) -> None:
    inner, outer, place = names
    shape, dim, dims = SHAPES[place]
    model, args = Nested(inner, outer, dim, dims), values(shape, device, dtype)
    compiled = torchkiln.compile(model, args, min_block_size=1, require_full_compilation=True, **options)
    assert_same(model(*args), compiled(*args), OpClass.MODEL)


SUMS = [(inner, "sum", place) for inner in INNER for place in SHAPES]
OTHERS = [
    (inner, outer, place) for inner in ("mean", "softmax") for outer in OUTER if outer != "sum" for place in ("two rows", "over rows")
]
CASES = [pytest.param(names, id=", ".join(names)) for names in (*SUMS, *OTHERS)]


@pytest.mark.parametrize("names", CASES)
def test_equals_eager_on_the_reference_engine(names: tuple[str, str, str]) -> None:
    check(names, "cpu", engine="reference")


@pytest.mark.gpu
@pytest.mark.parametrize("names", CASES)
def test_equals_eager_on_tensorrt(names: tuple[str, str, str]) -> None:
    check(names, "cuda", engine="tensorrt")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("inner", ["mean", "softmax", "layer_norm", "by a matrix"])
def test_equals_eager_in_half_precision(inner: str, dtype: torch.dtype) -> None:
    check((inner, "sum", "over columns"), "cuda", dtype, engine="tensorrt")


@pytest.mark.gpu
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_of_probabilities(reduction: str) -> None:
    class Loss(torch.nn.Module):
        def forward(self, scores: T, target: T) -> T:
            return F.cross_entropy(scores, target.softmax(1), reduction=reduction)

    for shape in ((2, 3), (2, 3, 1), (2, 3, 1, 2, 3)):
        args = values(shape, "cuda")
        compiled = torchkiln.compile(Loss(), args, engine="tensorrt", min_block_size=1, require_full_compilation=True)
        assert_same(Loss()(*args), compiled(*args), OpClass.MODEL)


@pytest.mark.gpu
@pytest.mark.parametrize("inner", ["mean", "softmax", "by a matrix"])
def test_a_static_engine_for_a_hot_shape(inner: str) -> None:
    model, args = Nested(inner, "sum", 1, (0, 1)), values((64, 3), "cuda")
    rows = Dim("rows", min=2, max=1000)
    compiled = torchkiln.compile(
        model,
        args,
        dynamic_shapes={"x": {0: rows}, "weights": {0: rows}},
        engine="tensorrt",
        min_block_size=1,
        require_full_compilation=True,
        specialize=2,
    )
    for _ in range(4):
        assert_same(model(*args), compiled(*args), OpClass.MODEL)
    assert compiled.wait_for_static_engines(120)
    assert [item.state for item in compiled.report.static_engines] == ["serving"]
    assert_same(model(*args), compiled(*args), OpClass.MODEL)
