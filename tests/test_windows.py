"""Pools over windows that differ, places of maxima, and resizing with antialiasing, all in engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

import torchkiln
from torchkiln_testing import OpClass, assert_same

T = torch.Tensor

POOLS: Mapping[str, tuple[Callable[[T], Any], tuple[int, ...]]] = {
    "adaptive max of rows": (lambda x: F.adaptive_max_pool1d(x, 3, return_indices=True), (2, 3, 7)),
    "adaptive max of planes": (lambda x: F.adaptive_max_pool2d(x, (3, 2)), (2, 3, 7, 5)),
    "adaptive max of planes and places": (lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True), (2, 3, 7, 9)),
    "adaptive max of equal parts": (lambda x: F.adaptive_max_pool2d(x, (4, 2)), (2, 3, 8, 6)),
    "adaptive max of equal parts and places": (lambda x: F.adaptive_max_pool2d(x, (4, 2), return_indices=True), (2, 3, 8, 6)),
    "adaptive max of all and its place": (lambda x: F.adaptive_max_pool2d(x, 1, return_indices=True), (2, 3, 8, 6)),
    "adaptive max of spaces": (lambda x: F.adaptive_max_pool3d(x, (2, 3, 1), return_indices=True), (2, 2, 5, 7, 4)),
    "adaptive mean of rows": (lambda x: F.adaptive_avg_pool1d(x, 3), (2, 3, 7)),
    "adaptive mean of planes": (lambda x: F.adaptive_avg_pool2d(x, (3, 6)), (2, 3, 7, 5)),
    "adaptive mean of spaces": (lambda x: F.adaptive_avg_pool3d(x, (2, 3, 1)), (2, 2, 5, 7, 4)),
    "max and places in rows": (lambda x: F.max_pool1d(x, 3, 2, 1, return_indices=True), (2, 3, 9)),
    "max and places in planes": (lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True, return_indices=True), (2, 3, 8, 9)),
    "max and places in spaces": (lambda x: F.max_pool3d(x, 2, return_indices=True), (2, 2, 4, 6, 5)),
    "max of dilated windows": (lambda x: F.max_pool2d(x, 3, 1, 1, 2), (2, 3, 8, 9)),
}
RESIZED: Mapping[str, tuple[Callable[[T], Any], tuple[int, ...]]] = {
    "linear": (lambda x: F.interpolate(x, (5, 17), mode="bilinear", antialias=True), (2, 3, 12, 9)),
    "linear from corner to corner": (
        lambda x: F.interpolate(x, (5, 4), None, "bilinear", True, antialias=True),
        (2, 3, 12, 9),
    ),
    "cubic": (lambda x: F.interpolate(x, (5, 17), mode="bicubic", antialias=True), (2, 3, 12, 9)),
    "cubic by a factor": (lambda x: F.interpolate(x, scale_factor=0.3, mode="bicubic", antialias=True), (2, 3, 31, 40)),
}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def _spoiled(shape: tuple[int, ...]) -> T:
    """Few different numbers, NaN in one channel and infinities in another."""
    x = torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(0)) / 2
    x[0, 0].flatten()[::5] = torch.nan
    x[1, 1].flatten()[::3] = -torch.inf
    x[1, 0].flatten()[::9] = torch.inf
    return x


def check(row: tuple[Callable[[T], Any], tuple[int, ...]], device: str, *, dynamic: bool, dtype: torch.dtype, **options: Any) -> None:
    """Half dtypes are compared with what float32 gives: eager's kernels for the CPU have none, or add up in them."""
    function, shape = row
    x = _spoiled(shape).to(device, dtype)
    shapes = ({0: Dim("n", min=1, max=4), 1: Dim("c", min=1, max=6)},) if dynamic else None
    compiled = torchkiln.compile(function, (x,), dynamic_shapes=shapes, min_block_size=1, require_full_compilation=True, **options)
    for given in (x, *((x.repeat(2, 2, *(1,) * (x.dim() - 2)), x[:1, :1]) if dynamic else ())):
        wanted = torch.utils._pytree.tree_map(lambda item: item.to(dtype) if item.is_floating_point() else item, function(given.float()))
        assert_same(wanted, compiled(given), OpClass.REDUCTION)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", [*POOLS, *RESIZED])
def test_equals_eager_on_the_reference_engine(name: str, dynamic: bool) -> None:
    check({**POOLS, **RESIZED}[name], "cpu", dynamic=dynamic, dtype=torch.float32, engine="reference", targets=["sm_89"])


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("name", ["adaptive max of planes and places", "adaptive mean of planes", "linear"])
def test_halves_equal_eager_on_the_reference_engine(name: str, dtype: torch.dtype) -> None:
    check({**POOLS, **RESIZED}[name], "cpu", dynamic=True, dtype=dtype, engine="reference", targets=["sm_89"])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", [*POOLS, *RESIZED])
def test_equals_eager_on_tensorrt(name: str, dynamic: bool, dtype: torch.dtype) -> None:
    check({**POOLS, **RESIZED}[name], "cuda", dynamic=dynamic, dtype=dtype, engine="tensorrt")
