"""Running extremes and sums of exponentials, medians, ranks and long orders: whole in an engine, and equal to eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim

import torchkiln
from torchkiln_testing import OpClass, assert_same

INF, NAN = float("inf"), float("nan")
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
DTYPES = (*FLOATS, torch.int32, torch.int64)
ROW = torch.tensor([-INF, -INF, 0.0, -1.0, 2.0, 2.0, -1.0, 2.0, INF, 1.0, -INF, INF, NAN, 3.0, NAN, INF, -INF])
CALLS: dict[str, tuple[Callable[[torch.Tensor], Any], tuple[torch.dtype, ...]]] = {
    "cummax": (lambda x: tuple(torch.cummax(x, 1)), (*DTYPES, torch.bool)),
    "cummin": (lambda x: tuple(torch.cummin(x, 1)), (*DTYPES, torch.bool)),
    "cummax of values": (lambda x: torch.cummax(x, -1).values, DTYPES),
    "cummin of indices": (lambda x: torch.cummin(x, -1).indices, DTYPES),
    "logcumsumexp": (lambda x: torch.logcumsumexp(x, 1), FLOATS),
    "median": (lambda x: x.median(1).values, DTYPES),
    "nanmedian": (lambda x: x.nanmedian(-1, keepdim=True).values, DTYPES),
    "kthvalue": (lambda x: x.kthvalue(3, 1).values, DTYPES),
    "kthvalue from the end": (lambda x: x.kthvalue(15, 1, keepdim=True).values, DTYPES),
}
WHOLE: dict[str, Callable[[torch.Tensor], Any]] = {"median of all": lambda x: x.median(), "nanmedian of all": lambda x: x.nanmedian()}
CASES = [
    pytest.param(name, dtype, id=f"{name}, {str(dtype).removeprefix('torch.')}") for name, (_, dtypes) in CALLS.items() for dtype in dtypes
]


def table(dtype: torch.dtype, device: str) -> torch.Tensor:
    """``[5, 17]``: rows of equal elements, and of infinities and NaN where the dtype has them."""
    ties = (torch.arange(3 * 17) * 5 % 7 - 3).reshape(3, 17)
    if not dtype.is_floating_point:
        large = torch.tensor([[2**40], [1], [-(2**40)]]) if dtype == torch.int64 else 1
        return torch.cat([ties * large, -ties[:2]]).to(device, dtype)
    return torch.cat([ties.float(), ROW[None], ROW.flip(0)[None]]).to(device, dtype)


def skip_unless_devices_agree(function: Callable[[torch.Tensor], Any], x: torch.Tensor) -> None:
    """PyTorch 2.11 has NaN of bfloat16 first on a GPU and last on a CPU, which is followed here."""
    there, here = function(x.cuda()), function(x)
    for on_gpu, on_cpu in zip(*(item if isinstance(item, tuple) else (item,) for item in (there, here)), strict=True):
        if not torch.equal(on_gpu.isnan().cpu(), on_cpu.isnan()):
            pytest.skip(f"this release of torch orders NaN of {x.dtype} differently on a GPU")


def check(name: str, dtype: torch.dtype, dynamic: bool, device: str, **options: Any) -> None:
    function, x = CALLS[name][0], table(dtype, device)
    shapes = ({0: Dim("rows", min=1, max=9)},) if dynamic else None
    compiled = torchkiln.compile(function, (x,), dynamic_shapes=shapes, min_block_size=1, require_full_compilation=True, **options)
    assert [segment.kind for segment in compiled.report.segments] == ["engine"]
    for rows in (x, *((x[3:4], torch.cat([x[1:], x.flip(0)[1:]])) if dynamic else ())):
        assert_same(function(rows), compiled(rows), OpClass.PARTIAL if name == "logcumsumexp" else OpClass.EXACT)


def check_whole(name: str, dtype: torch.dtype, device: str, **options: Any) -> None:
    function, x = WHOLE[name], table(dtype, device)
    compiled = torchkiln.compile(function, (x,), min_block_size=1, require_full_compilation=True, **options)
    for values in (x, torch.nan_to_num(x, 1.0), x.flip(0)):
        assert_same(function(values), compiled(values), OpClass.EXACT)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_equals_eager_on_the_reference_engine(name: str, dtype: torch.dtype, dynamic: bool) -> None:
    check(name, dtype, dynamic, "cpu", engine="reference", targets=["sm_89"])


@pytest.mark.gpu
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_equals_eager_on_tensorrt(name: str, dtype: torch.dtype, dynamic: bool) -> None:
    check(name, dtype, dynamic, "cuda", engine="tensorrt")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", WHOLE)
def test_all_elements_on_the_reference_engine(name: str, dtype: torch.dtype) -> None:
    check_whole(name, dtype, "cpu", engine="reference", targets=["sm_89"])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", WHOLE)
def test_all_elements_on_tensorrt(name: str, dtype: torch.dtype) -> None:
    skip_unless_devices_agree(WHOLE[name], table(dtype, "cpu"))
    check_whole(name, dtype, "cuda", engine="tensorrt")


def long_rows(dtype: torch.dtype, device: str) -> torch.Tensor:
    """``[3, 9000]`` of equal elements, with infinities and NaN where the dtype has them."""
    x = (torch.arange(3 * 9000) * 7919 % 1009 - 500).reshape(3, 9000)
    if dtype.is_floating_point:
        x = torch.where(x % 11 == 0, NAN, torch.where(x % 13 == 0, INF, torch.where(x % 17 == 0, -INF, x.float())))
    return x.to(device, dtype)


LONG: dict[str, Callable[[torch.Tensor], Any]] = {
    "sort": lambda x: tuple(torch.sort(x, dim=1, stable=True)),
    "descending sort": lambda x: tuple(torch.sort(x, dim=-1, descending=True, stable=True)),
    "sort of values": lambda x: x.sort(1).values,
    "topk": lambda x: x.topk(5000).values,
    "median": lambda x: x.median(1).values,
    "nanmedian": lambda x: x.nanmedian(1).values,
    "kthvalue": lambda x: x.kthvalue(4500).values,
}


def check_long(name: str, dtype: torch.dtype, dynamic: bool, device: str, **options: Any) -> None:
    function, x = LONG[name], long_rows(dtype, device)
    shapes = ({0: Dim("rows", min=1, max=9)},) if dynamic else None
    compiled = torchkiln.compile(function, (x,), dynamic_shapes=shapes, min_block_size=1, require_full_compilation=True, **options)
    for rows in (x, *((x[1:2], x.repeat(3, 1)) if dynamic else ())):
        assert_same(function(rows), compiled(rows), OpClass.EXACT)


@pytest.mark.parametrize(
    ("dtype", "dynamic"),
    [
        (torch.float32, True),
        (torch.int64, False),
        *(pytest.param(dtype, False, marks=pytest.mark.slow) for dtype in (torch.float16, torch.bfloat16, torch.int32)),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", LONG)
def test_long_rows_on_the_reference_engine(name: str, dtype: torch.dtype, dynamic: bool) -> None:
    check_long(name, dtype, dynamic, "cpu", engine="reference", targets=["sm_89"])


@pytest.mark.gpu
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", LONG)
def test_long_rows_on_tensorrt(name: str, dtype: torch.dtype, dynamic: bool) -> None:
    skip_unless_devices_agree(LONG[name], long_rows(dtype, "cpu"))
    check_long(name, dtype, dynamic, "cuda", engine="tensorrt")
