"""Results that do not depend on what is in the input, which TensorRT may know when it builds: every element must be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim

import torchkiln
from torchkiln_testing import OpClass, assert_same

T = torch.Tensor

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int32, torch.int64)
ALWAYS = torch.tensor([True, True, True])

RESULTS: dict[str, tuple[Callable[[T], T], tuple[torch.dtype, ...]]] = {
    "or true": (lambda x: x | True, (torch.bool,)),
    "plus true": (lambda x: x + True, (torch.bool,)),
    "and false": (lambda x: x & False, (torch.bool,)),
    "or a true tensor": (lambda x: torch.logical_or(x, torch.tensor(True, device=x.device)), (torch.bool,)),
    "or a number": (lambda x: torch.logical_or(x, torch.tensor(1.0, device=x.device)), (torch.bool,)),
    "or ones like it": (lambda x: x | torch.ones_like(x), (torch.bool,)),
    "and zeros": (lambda x: torch.logical_and(x, torch.zeros(3, device=x.device)), (torch.bool,)),
    "or expanded": (lambda x: x | torch.tensor(True, device=x.device).expand(x.shape), (torch.bool,)),
    "or true elements": (lambda x: x | ALWAYS.to(x.device), (torch.bool,)),
    "and no false element": (lambda x: torch.minimum(x, torch.tensor(False, device=x.device)), (torch.bool,)),
    "chosen of equals": (lambda x: torch.where(x, True, True), (torch.bool,)),
    "equal to itself": (lambda x: x == x, (torch.bool, *INTEGERS)),
    "different from itself": (lambda x: x != x, (torch.bool, *INTEGERS)),
    "not a number": (torch.isnan, INTEGERS),
    "times zero": (lambda x: x * 0, INTEGERS),
    "minus itself": (lambda x: x - x, INTEGERS),
    "to the power of zero": (lambda x: x.pow(0), FLOATS),
    "between equal bounds": (lambda x: x.clamp(3, 3), INTEGERS),
    "ones": (torch.ones_like, (torch.bool, *FLOATS, *INTEGERS)),
    "filled": (lambda x: torch.full_like(x, 1), (torch.bool, *FLOATS, *INTEGERS)),
}
CASES = [
    pytest.param(name, dtype, id=f"{name}, {str(dtype).removeprefix('torch.')}")
    for name, (_, dtypes) in RESULTS.items()
    for dtype in dtypes
]


class Model(torch.nn.Module):
    """``[*] -> [*]``."""

    def __init__(self, function: Callable[[T], T]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: T) -> T:
        return self.function(x)


def check(name: str, dtype: torch.dtype, shape: tuple[int, ...], device: str, **options: Any) -> None:
    model = Model(RESULTS[name][0])
    count = int(torch.Size(shape).numel())
    x = (torch.arange(count) * 5 % 7 - 3).reshape(shape).to(device, dtype)
    compiled = torchkiln.compile(model, (x,), min_block_size=1, **options)
    for stale in (0, 1, 0, 1):
        # What the results are written to held this before.
        before = [torch.full_like(x, stale) for _ in range(8)]
        del before
        assert_same(model(x), compiled(x), OpClass.EXACT)


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_equals_eager_on_the_reference_engine(name: str, dtype: torch.dtype) -> None:
    check(name, dtype, (5, 3), "cpu", engine="reference")


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(2, 3), (5, 7, 3)], ids=str)
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_equals_eager_on_tensorrt(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    check(name, dtype, shape, "cuda", engine="tensorrt")


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_equals_eager_on_tensorrt_with_a_dynamic_size(name: str, dtype: torch.dtype) -> None:
    check(name, dtype, (5, 3), "cuda", engine="tensorrt", dynamic_shapes={"x": {0: Dim("rows", min=2, max=1000)}})
