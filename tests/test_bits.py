"""Bits of integers, signs of floats and ``erfc`` in an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim

import torchkiln
from torchkiln_testing import OpClass, assert_same

T = torch.Tensor
INF, NAN = float("inf"), float("nan")


def integers(dtype: torch.dtype, device: str) -> tuple[T, T]:
    """Every pair of numbers that are special to the dtype: ``[13, 1]``, ``[13, 13]``."""
    info = torch.iinfo(dtype)
    half = 1 << (info.bits // 2)
    found = [info.min, info.min + 1, -half - 3, -255, -2, -1, 0, 1, 6, 170, half + 9, info.max - 1, info.max]
    x = torch.tensor(found, dtype=dtype, device=device)
    return x[:, None], x.expand(13, 13).contiguous()


def places(x: T) -> T:
    """Counts below 0, inside of the width and above it."""
    return torch.arange(x.shape[1], dtype=x.dtype, device=x.device) * 6 - 3


BITS: dict[str, Callable[[T, T], Any]] = {
    "and a number": lambda a, b: (b & 0xFF, b & -4096, 1 & b, b & 0x7FFFFFFF, b & 0x33CC),
    "or a number": lambda a, b: (b | 0xF0, b | -16, b | 0, b | -1),
    "xor a number": lambda a, b: (b ^ 0x5555, b ^ -1, b ^ -77),
    "signs and the rest": lambda a, b: (b & torch.iinfo(b.dtype).max, b | torch.iinfo(b.dtype).min, b ^ torch.iinfo(b.dtype).min),
    "logic of tensors": lambda a, b: (a & b, a | b, a ^ b),
    "shifts by a number": lambda a, b: (b << 5, b >> 5, b << 31, b >> 31, b << 30, b >> 30, b << 70, b >> -1),
    "shifts by a tensor": lambda a, b: (a << places(b), a >> places(b), 3 << places(b), -3 >> places(b)),
    "a hash": lambda a, b: ((b ^ (b >> 7)) * 31 + (a << 3)) & 1023,
    "in place": lambda a, b: (b.clone().bitwise_and_(6), b.clone().bitwise_left_shift_(2)),
}
CASES = [
    pytest.param(name, dtype, id=f"{name}, {str(dtype).removeprefix('torch.')}") for name in BITS for dtype in (torch.int32, torch.int64)
]
SIGNED = torch.tensor([0.0, -0.0, 1.5, -1.5, INF, -INF, 0.25, -0.25, 1e-7, -1e-7])
FLOATING: dict[str, Callable[[T], Any]] = {
    "signbit": torch.signbit,
    "copysign": lambda x: torch.copysign(x[:, None], x).reciprocal(),
    "copysign of numbers": lambda x: (torch.copysign(x, -0.0), torch.copysign(x, 3), torch.copysign((x > 0).int(), x)),
}
FLOAT_CASES = [
    pytest.param(name, dtype, id=f"{name}, {str(dtype).removeprefix('torch.')}")
    for name in FLOATING
    for dtype in (torch.float32, torch.float16, torch.bfloat16)
]


class Model(torch.nn.Module):
    """``[*] -> [*]``."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: T) -> Any:
        return self.function(*args)


def check(function: Callable[..., Any], args: tuple[T, ...], op: OpClass = OpClass.EXACT, **options: Any) -> None:
    model = Model(function)
    compiled = torchkiln.compile(model, args, min_block_size=1, require_full_compilation=True, **options)
    assert [segment.kind for segment in compiled.report.segments] == ["engine"]
    assert_same(model(*args), compiled(*args), op)


def check_tail(dtype: torch.dtype, device: str, **options: Any) -> None:
    """``erfc`` by its relative error, which no class of tolerances bounds where results are far below 1."""
    x = torch.cat([torch.linspace(-6, 9, 997), torch.tensor([0.0, -0.0, INF, -INF, NAN, 20.0, -20.0])]).to(device, dtype)
    compiled = torchkiln.compile(Model(torch.erfc), (x,), min_block_size=1, require_full_compilation=True, **options)
    torch.testing.assert_close(compiled(x), torch.erfc(x.double()).to(dtype), rtol=TAIL[dtype], atol=SMALLEST[dtype], equal_nan=True)


TAIL = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SMALLEST = {torch.float32: 1e-36, torch.float16: 1e-6, torch.bfloat16: 1e-36}
"""Below which a dtype holds few digits, or a GPU may round to 0."""
HALVES_TOO = pytest.mark.parametrize("dtype", TAIL, ids=lambda dtype: str(dtype).removeprefix("torch."))


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_bits_on_the_reference_engine(name: str, dtype: torch.dtype) -> None:
    check(BITS[name], integers(dtype, "cpu"), engine="reference")


@pytest.mark.parametrize(("name", "dtype"), FLOAT_CASES)
def test_signs_on_the_reference_engine(name: str, dtype: torch.dtype) -> None:
    check(FLOATING[name], (SIGNED.to(dtype),), engine="reference")


@HALVES_TOO
def test_erfc_on_the_reference_engine(dtype: torch.dtype) -> None:
    check_tail(dtype, "cpu", engine="reference")


@pytest.mark.parametrize("name", BITS)
def test_sizes_may_be_dynamic(name: str) -> None:
    args, rows = integers(torch.int64, "cpu"), Dim("rows", min=2, max=64)
    model = Model(BITS[name])
    compiled = torchkiln.compile(
        model, args, dynamic_shapes=(({0: rows}, {0: rows}),), engine="reference", min_block_size=1, require_full_compilation=True
    )
    args = tuple(torch.cat([item, item]) for item in args)
    assert_same(model(*args), compiled(*args), OpClass.EXACT)


@pytest.mark.parametrize("name", [*BITS, *FLOATING, "erfc"])
def test_plans_are_built(name: str) -> None:
    pytest.importorskip("tensorrt_rtx")
    if name in BITS:
        check(BITS[name], integers(torch.int64, "cpu"), engine="reference", targets=["sm_89"])
    elif name in FLOATING:
        check(FLOATING[name], (SIGNED,), engine="reference", targets=["sm_89"])
    else:
        check_tail(torch.float32, "cpu", engine="reference", targets=["sm_89"])


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_bits_on_tensorrt(name: str, dtype: torch.dtype) -> None:
    check(BITS[name], integers(dtype, "cuda"), engine="tensorrt")


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "dtype"), FLOAT_CASES)
def test_signs_on_tensorrt(name: str, dtype: torch.dtype) -> None:
    check(FLOATING[name], (SIGNED.to("cuda", dtype),), engine="tensorrt")


@pytest.mark.gpu
@HALVES_TOO
def test_erfc_on_tensorrt(dtype: torch.dtype) -> None:
    check_tail(dtype, "cuda", engine="tensorrt")
