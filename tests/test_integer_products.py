"""Matrix products of integers: whole in an engine, and equal to eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.export import Dim

import torchkiln
from torchkiln_lowering.decompositions.integer_products import MOST_PER_ROW
from torchkiln_testing import OpClass, assert_same

T = torch.Tensor
CALLS: dict[str, Callable[[T], T]] = {
    "matrices": lambda x: x @ x[:5].T,
    "batches": lambda x: torch.bmm(x[:, :, None], x[:, None]),
    "broadcast": lambda x: torch.matmul(x[:, None], x[:4].T),
    "by a vector": lambda x: x @ x[0],
    "a vector by": lambda x: x[1] @ x[:4].T,
    "vectors": lambda x: torch.dot(x[0], x[1]),
    "with an addend": lambda x: torch.addmm(x[:, :4], x, x[:4].T, beta=2, alpha=-3),
    "einsum": lambda x: torch.einsum("mk,nk->mn", x, x[:3]),
    "nothing to sum": lambda x: x[:, :0] @ x[:3, :0].T,
}
PARAMETERS = [pytest.param(name, dtype, id=f"{name}, {dtype}") for name in CALLS for dtype in (torch.int32, torch.int64)]


def numbers(dtype: torch.dtype, device: str, rows: int = 6) -> T:
    """``[N, 7]``, whose products wrap around."""
    scale = 2**20 + 7 if dtype == torch.int32 else 2**41 + 11
    return ((torch.arange(rows * 7) * 5 % 23 - 11).reshape(rows, 7) * scale).to(device, dtype)


def compiled(name: str, x: T, *, dynamic: bool, engine: str) -> Callable[[T], T]:
    shapes = ({0: Dim("rows", min=5, max=50)},) if dynamic else None
    options = {"targets": ["sm_89"]} if engine == "reference" else {}
    return torchkiln.compile(
        CALLS[name], (x,), dynamic_shapes=shapes, engine=engine, min_block_size=1, require_full_compilation=True, **options
    )


def check(name: str, dtype: torch.dtype, device: str, engine: str) -> None:
    x = numbers(dtype, device)
    want = CALLS[name](x.cpu()).to(device)  # PyTorch has no such products on a GPU.
    assert_same(want, compiled(name, x, dynamic=False, engine=engine)(x), OpClass.EXACT)


@pytest.mark.parametrize(("name", "dtype"), PARAMETERS)
def test_equals_eager_on_the_reference_engine(name: str, dtype: torch.dtype) -> None:
    check(name, dtype, "cpu", "reference")


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "dtype"), PARAMETERS)
def test_equals_eager_on_tensorrt(name: str, dtype: torch.dtype) -> None:
    check(name, dtype, "cuda", "tensorrt")


@pytest.mark.parametrize("name", ["matrices", "by a vector"])
def test_rows_of_any_number(name: str) -> None:
    run = compiled(name, numbers(torch.int64, "cpu"), dynamic=True, engine="reference")
    for rows in (5, 6, 13, 50):
        x = numbers(torch.int64, "cpu", rows)
        assert_same(CALLS[name](x), run(x), OpClass.EXACT)


def test_large_factors_stay_in_pytorch() -> None:
    def product(x: T, y: T) -> T:
        return x @ y

    args = torch.ones(2, 257, dtype=torch.int64), torch.ones(257, MOST_PER_ROW // 256, dtype=torch.int64)
    module = torchkiln.compile(product, args, engine="reference", min_block_size=1)
    assert [segment.kind for segment in module.report.segments] == ["torch"]
    assert_same(product(*args), module(*args), OpClass.EXACT)
