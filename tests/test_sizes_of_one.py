"""One query, one key, one row: products and softmaxes of one element, with elementwise layers behind them."""

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
Shapes = tuple[tuple[int | str, ...], ...]
"""Of the arguments; a size that has a name is 1 or dynamic."""


def attention(q: T, k: T) -> T:
    return F.scaled_dot_product_attention(q, k, k) * 2


def attention_and_itself(q: T, k: T) -> T:
    return F.scaled_dot_product_attention(q, k, k) + q


def rectified_attention(q: T, k: T) -> T:
    return torch.relu(F.scaled_dot_product_attention(q, k, k))


def by_hand(q: T, k: T) -> T:
    return torch.softmax(q @ k.transpose(1, 2), -1) @ k * 2


def scores(q: T, k: T) -> T:
    return torch.softmax(q @ k.transpose(1, 2), -1) * 2


def unweighted(q: T, k: T) -> T:
    return (q @ k.transpose(1, 2)) @ k * 2


def weighted(w: T, v: T) -> T:
    return torch.softmax(w, -1) @ v * 2


def spread(w: T, v: T) -> T:
    return torch.softmax(w, -1) * v * 2


def product(a: T, b: T) -> T:
    return a @ b * 2


def rectified_product(a: T, b: T) -> T:
    return torch.relu(a @ b)


def there_and_back(a: T, b: T) -> T:
    return (a @ b) @ a * 2


def linear(x: T, w: T) -> T:
    return F.gelu(F.linear(x, w)) * 2


def root_mean_square(x: T, w: T) -> T:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w * 2


def by_largest(x: T, v: T) -> T:
    return x.amax(-1, keepdim=True) * v * 2


CASES: dict[str, tuple[Callable[[T, T], T], Shapes]] = {
    "one query, one key": (attention, ((4, "m", 4), (4, "m", 4))),
    "one query": (attention, ((4, "m", 4), (4, 7, 4))),
    "one query, two keys": (attention, ((4, "m", 4), (4, 2, 4))),
    "one key": (attention, ((4, 2, 4), (4, "m", 4))),
    "one key, rectified": (rectified_attention, ((4, 5, 4), (4, "m", 4))),
    "one query of heads": (attention, ((2, 3, "m", 8), (2, 3, 7, 8))),
    "one query of heads, added": (attention_and_itself, ((2, 12, "m", 64), (2, 12, 9, 64))),
    "one key of heads, added": (attention_and_itself, ((2, 12, "m", 64), (2, 12, "m", 64))),
    "one feature": (attention, ((4, "m", 1), (4, "m", 1))),
    "by hand": (by_hand, ((4, "m", 4), (4, 7, 4))),
    "scores": (scores, ((4, "m", 4), (4, "n", 4))),
    "unweighted": (unweighted, ((4, "m", 4), (4, "m", 4))),
    "weighted": (weighted, ((4, "m", "n"), (4, "n", 4))),
    "weighted rows": (weighted, ((4, 3, "n"), (4, "n", 4))),
    "spread": (spread, ((4, "m", 1), (4, 1, 4))),
    "outer": (product, ((4, 3, "n"), (4, "n", 4))),
    "outer, wide": (product, ((6, "m", "n"), (6, "n", 64))),
    "row": (product, ((4, "m", 8), (4, 8, 4))),
    "row, rectified": (rectified_product, ((4, "m", 8), (4, 8, 4))),
    "dot": (product, ((4, "m", 8), (4, 8, 1))),
    "there and back": (there_and_back, ((4, "m", 8), (4, 8, "m"))),
    "linear": (linear, ((4, "m", 8), (6, 8))),
    "root mean square": (root_mean_square, ((4, "m", 8), (8,))),
    "by the largest": (by_largest, ((4, "m", 7), (4, "m", 4))),
}


def values(*sizes: int, device: str) -> T:
    count = int(torch.Size(sizes).numel())
    return ((torch.arange(count) * 7 % 23 - 11).reshape(sizes) / 4).to(device)


def arguments(shapes: Shapes, size: int, device: str) -> tuple[T, ...]:
    return tuple(values(*(size if isinstance(item, str) else item for item in shape), device=device) for shape in shapes)


def check(case: str, kind: str, device: str, **options: Any) -> None:
    function, shapes = CASES[case]
    options |= {"min_block_size": 1, "require_full_compilation": True}
    sizes: tuple[int, ...] = (1,)
    dynamic = None
    if kind != "static":
        options["kernel_specialization"] = kind
        sizes = (3, 1, 2, 1)
        dims = {name: Dim(name, min=1, max=8) for name in ("m", "n")}
        dynamic = tuple({at: dims[size] for at, size in enumerate(shape) if isinstance(size, str)} for shape in shapes)
    compiled = torchkiln.compile(function, arguments(shapes, sizes[0], device), dynamic_shapes=dynamic, **options)
    for size in sizes:
        args = arguments(shapes, size, device)
        for _ in range(4):
            assert_same(function(*args), compiled(*args), OpClass.MODEL)


@pytest.mark.parametrize("kind", ["static", "eager"])
@pytest.mark.parametrize("case", CASES)
def test_equals_eager_on_the_reference_engine(case: str, kind: str) -> None:
    check(case, kind, "cpu", engine="reference", targets=["sm_89"])


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["static", "eager", "lazy", "none"])
@pytest.mark.parametrize("case", CASES)
def test_equals_eager_on_tensorrt(case: str, kind: str) -> None:
    check(case, kind, "cuda", engine="tensorrt")
