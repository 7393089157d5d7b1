"""Pools over windows of any kind and resizing with antialiasing: equal to eager, NaN and infinities in their places."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from lowering_programs import FLOATS, Oracle, aten, guard_state, run, targets, whole
from torch.export import Dim

from torchkiln_lowering import AtenLowering
from torchkiln_lowering.decompositions.antialias import _FILTERS, ANTIALIAS, _axis
from torchkiln_lowering.decompositions.pools import adaptive_avg_pool, adaptive_max_pool

INF, NAN = float("inf"), float("nan")
_MORE = """
index_select.default reshape.default ne.Tensor clamp_min.default clamp_max.default div.Tensor_mode full_like.default
floor.default sin.default
"""
HALVES = (torch.float16, torch.bfloat16)


def oracle() -> Oracle:
    """Accepts none of the operators under test."""
    return Oracle(*(getattr(getattr(aten, name.split(".")[0]), name.split(".")[1]) for name in _MORE.split()))


def _numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    """Few different numbers, so that windows hold equal ones, and NaN and infinities among them."""
    x = torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).float()
    special = torch.tensor([NAN, -INF, INF])
    return torch.where(x.abs() == 3, special[torch.randint(0, 3, shape, generator=torch.Generator().manual_seed(seed + 1))], x)


def _plain(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def _lowered(compute: Callable[..., Any], x: torch.Tensor, dynamic: dict[int, Any] | None = None) -> Any:
    program = whole(compute, (x,), ((dynamic,),) if dynamic else None)
    guards = guard_state(program)
    lowered = AtenLowering().lower(program, oracle())
    assert guard_state(program) == guards
    left = [call for call in targets(lowered) if isinstance(call, torch._ops.OpOverload) and call not in oracle().targets]
    assert set(left) <= {aten.sym_size.int}
    return lowered


def _agrees(compute: Callable[..., Any], x: torch.Tensor, dynamic: dict[int, Any] | None = None, **tolerance: float) -> None:
    """Half dtypes are compared with what float32 gives, which is what a GPU computes in."""
    lowered = _lowered(compute, x, dynamic)
    if dynamic:
        x = x.repeat(*(2 if dim in dynamic else 1 for dim in range(x.dim())))
    expected = compute(x.float()) if x.dtype in HALVES else compute(x)
    wanted = expected if isinstance(expected, tuple) else (expected,)
    for mine, theirs in zip(run(lowered, x), wanted, strict=True):
        exact = theirs.to(x.dtype) if theirs.is_floating_point() else theirs
        assert mine.shape == exact.shape
        torch.testing.assert_close(mine, exact, equal_nan=True, **tolerance)


def _exactly(compute: Callable[..., Any], x: torch.Tensor, dynamic: dict[int, Any] | None = None) -> None:
    _agrees(compute, x, dynamic, rtol=0, atol=0)


ADAPTIVE: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "a row": ((2, 3, 7), (3,)),
    "a row in equal parts": ((2, 3, 8), (4,)),
    "a row to more": ((2, 3, 5), (8,)),
    "a row without batch": ((3, 7), (3,)),
    "a plane": ((2, 3, 7, 5), (3, 2)),
    "a plane of which one axis stays": ((2, 3, 7, 5), (7, 3)),
    "a plane in equal parts": ((2, 3, 8, 6), (4, 2)),
    "a plane to one": ((2, 3, 7, 5), (1, 1)),
    "a plane without batch": ((3, 7, 5), (2, 9)),
    "a space": ((2, 3, 5, 7, 4), (2, 3, 3)),
    "a space in equal parts": ((2, 3, 4, 6, 2), (2, 3, 1)),
    "a space without batch": ((3, 5, 7, 4), (6, 1, 4)),
}


def _adaptive(kind: str, output_size: tuple[int, ...]) -> Callable[..., Any]:
    return getattr(F, f"adaptive_{kind}_pool{len(output_size)}d")  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("name", ADAPTIVE)
def test_adaptive_max_pool(name: str, dtype: torch.dtype) -> None:
    shape, output_size = ADAPTIVE[name]
    pool = _adaptive("max", output_size)
    for seed in range(2):
        x = _numbers(*shape, seed=seed).to(dtype)
        _exactly(lambda x: pool(x, output_size, return_indices=True), x)
        _exactly(lambda x: pool(x, output_size), x)


@pytest.mark.parametrize("fill", [NAN, -INF, INF, 0.0])
def test_windows_of_equal_elements(fill: float) -> None:
    """The first of equal elements, also of ``-inf``, and the last NaN."""
    x = torch.full((1, 2, 7, 5), fill)
    _exactly(lambda x: F.adaptive_max_pool2d(x, (3, 2), return_indices=True), x)
    _exactly(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("name", ADAPTIVE)
def test_adaptive_avg_pool(name: str, dtype: torch.dtype) -> None:
    shape, output_size = ADAPTIVE[name]
    pool = _adaptive("avg", output_size)
    for make in (_numbers, _plain):
        _agrees(lambda x: pool(x, output_size), make(*shape).to(dtype))


@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize("name", [name for name in ADAPTIVE if "without" not in name])
def test_adaptive_pools_of_any_batch(name: str, kind: str) -> None:
    shape, output_size = ADAPTIVE[name]
    batch = {0: Dim("n", min=1, max=64), 1: Dim("c", min=1, max=64)}
    _agrees(lambda x: _adaptive(kind, output_size)(x, output_size), _numbers(*shape), batch)
    if kind == "max":
        _exactly(lambda x: _adaptive(kind, output_size)(x, output_size, return_indices=True), _numbers(*shape), batch)


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_adaptive_pools_to_one_of_any_size(kind: str) -> None:
    sizes = {2: Dim("h", min=1, max=64)}
    x = _numbers(2, 3, 7, 5)
    _agrees(lambda x: _adaptive(kind, (1, 2))(x, (1, 2)), x, sizes)
    if kind == "max":
        _exactly(lambda x: F.adaptive_max_pool2d(x, (1, 2), return_indices=True), x, sizes)


@pytest.mark.parametrize(
    ("compute", "dynamic"),
    [
        (lambda x: F.adaptive_max_pool2d(x, (3, 2), return_indices=True), {2: Dim("h", min=2, max=64)}),
        (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), {3: Dim("w", min=2, max=64)}),
        (lambda x: F.max_pool2d(x, 2, 1, return_indices=True), {2: Dim("h", min=4, max=64)}),
        (lambda x: F.interpolate(x, (3, 2), mode="bilinear", antialias=True), {2: Dim("h", min=2, max=64)}),
        (lambda x: F.adaptive_avg_pool2d(x, (0, 2)), None),
        (lambda x: F.interpolate(x, (3, 1), mode="bicubic", antialias=True), None),
    ],
    ids=["adaptive max", "adaptive avg", "max", "antialiased", "no window", "one column"],
)
def test_what_stays_in_torch(compute: Any, dynamic: Any) -> None:
    """Windows that a size decides which is not known, results without elements, and columns, of which eager repeats the first row."""
    x = _plain(2, 3, 7, 5)
    lowered = AtenLowering().lower(whole(compute, (x,), ((dynamic,),) if dynamic else None), oracle())
    assert any("pool" in str(call) or "_aa" in str(call) for call in targets(lowered))
    got = run(lowered, x)
    expected = compute(x)
    for mine, theirs in zip(got, expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(mine, theirs)


POOLINGS = list(itertools.product([(2, 3), (4, 2)], [None, (1, 2), (3, 2)], [(0, 0), (1, 1)], [(1, 1), (2, 1), (1, 3)], [False, True]))


@pytest.mark.parametrize(("kernel", "stride", "padding", "dilation", "ceil"), POOLINGS)
def test_max_pool(kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> None:
    def pool(x: torch.Tensor) -> Any:
        return F.max_pool2d(x, kernel, stride, padding, dilation, ceil, return_indices=True)

    _exactly(pool, _numbers(2, 3, 9, 10))


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: F.max_pool1d(x.flatten(2), 3, 2, 1, 2, return_indices=True),
        lambda x: F.max_pool2d(x[0], 3, 2, 1, return_indices=True),
        lambda x: F.max_pool2d(x.to(memory_format=torch.channels_last), 3, return_indices=True),
        lambda x: F.max_pool3d(x, (3, 2, 2), 2, (1, 0, 1), return_indices=True),
        lambda x: F.max_pool3d(x[None], 2, 3, 1, (2, 1, 1), True, return_indices=True),
        lambda x: F.max_pool3d(x[None], 2, 3, 1, (2, 1, 1), True),
        lambda x: aten.max_pool2d_with_indices.default(x, [3]),
        lambda x: aten.max_pool3d_with_indices.default(x, [2], [2], [1]),
        lambda x: F.adaptive_max_pool2d(x.to(memory_format=torch.channels_last), (4, 3), return_indices=True),
        lambda x: F.adaptive_avg_pool2d(x.to(memory_format=torch.channels_last), (4, 3)),
        lambda x: F.adaptive_max_pool2d(x.mT, (4, 3), return_indices=True),
    ],
)
def test_pools_of_other_forms(compute: Any) -> None:
    _agrees(compute, _numbers(3, 4, 7, 6), rtol=1e-6, atol=1e-6)


def test_max_pool_of_integers() -> None:
    x = torch.randint(-3, 3, (2, 3, 7, 6), generator=torch.Generator().manual_seed(0)) << 40
    x[0, 0] = torch.iinfo(torch.int64).min
    _exactly(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x)


FILTERS = ["bilinear", "bicubic", *(["lanczos"] if hasattr(aten, "_upsample_lanczos2d_aa") else [])]
RESIZED: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {
    "smaller": ((27, 33), {"size": (5, 4)}),
    "larger": ((5, 4), {"size": (14, 9)}),
    "mixed": ((9, 13), {"size": (4, 40)}),
    "one axis": ((9, 13), {"size": (9, 5)}),
    "as it is": ((9, 13), {"size": (9, 13)}),
    "to one": ((9, 13), {"size": (1, 1)}),
    "from one": ((1, 1), {"size": (3, 4)}),
    "by a factor": ((9, 13), {"scale_factor": (0.3, 1.7)}),
    "much smaller": ((240, 320), {"size": (7, 64)}),
}


@pytest.mark.parametrize(("mode", "align_corners"), [*((mode, False) for mode in FILTERS), ("bilinear", True), ("bicubic", True)])
@pytest.mark.parametrize("name", RESIZED)
def test_antialiasing(name: str, mode: str, align_corners: bool) -> None:
    shape, wanted = RESIZED[name]

    def resize(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, mode=mode, antialias=True, align_corners=align_corners, **wanted)

    _agrees(resize, _plain(2, 3, *shape), rtol=1e-5, atol=3e-6)
    spoiled = _plain(2, 3, *shape)
    spoiled[0, 0, shape[0] // 2, shape[1] // 2], spoiled[1, 1, 0, 0], spoiled[1, 2, -1, -1] = NAN, INF, -INF
    _agrees(resize, spoiled, rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("dtype", HALVES, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("mode", FILTERS)
def test_antialiasing_of_halves(mode: str, dtype: torch.dtype) -> None:
    _agrees(lambda x: F.interpolate(x, (5, 17), mode=mode, antialias=True), _plain(2, 3, 9, 13).to(dtype))


@pytest.mark.parametrize("mode", FILTERS)
def test_antialiasing_of_any_batch(mode: str) -> None:
    batch = {0: Dim("n", min=1, max=64), 1: Dim("c", min=1, max=64)}
    _agrees(lambda x: F.interpolate(x, (5, 17), mode=mode, antialias=True), _plain(2, 3, 9, 13), batch, rtol=1e-5, atol=3e-6)
    _agrees(lambda x: F.interpolate(x, scale_factor=0.4, mode=mode, antialias=True), _plain(2, 3, 9, 13), batch, rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("scale", [0.9, 1.1])
def test_a_scale_of_an_axis_that_keeps_its_size_stays_in_torch(scale: float) -> None:
    """Eager's kernel for the CPU leaves such an axis as it is."""

    def resize(x: torch.Tensor) -> Any:
        return aten._upsample_bilinear2d_aa.default(x, [6, 3], False, scale, 0.5)

    lowered = AtenLowering().lower(whole(resize, (_plain(1, 2, 6, 6),)), oracle())
    assert targets(lowered) == [aten._upsample_bilinear2d_aa.default]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_antialiasing(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(_FILTERS)))
    sizes, wanted = ([data.draw(st.integers(1, 90)) for _ in range(2)] for _ in range(2))
    scales = [data.draw(st.one_of(st.none(), st.floats(0.2, 5))) for _ in range(2)]
    align = "lanczos" not in name and data.draw(st.booleans())
    axes = [_axis(*each, _FILTERS[name], align_corners=align) for each in zip(sizes, wanted, scales, strict=True)]
    assume(all(axis.is_right for axis in axes) and (wanted[1] > 1 or wanted[0] == 1))
    target, x = getattr(aten, name).default, _plain(1, 2, *sizes)
    want = target(x, wanted, align, *scales)
    torch.testing.assert_close(ANTIALIAS[target].function(x, wanted, align, *scales), want, rtol=1e-4, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_adaptive_pool(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 3))
    sizes, wanted = ([data.draw(st.integers(1, 12)) for _ in range(rank)] for _ in range(2))
    x = _numbers(1, 2, *sizes, seed=data.draw(st.integers(0, 9)))
    values, places = getattr(aten, f"adaptive_max_pool{rank}d").default(x, wanted)
    got = adaptive_max_pool(x, wanted)
    assert torch.equal(got[1], places)
    torch.testing.assert_close(got[0], values, rtol=0, atol=0, equal_nan=True)
    averages = getattr(aten, f"adaptive_avg_pool{rank}d").default(x, wanted)
    torch.testing.assert_close(adaptive_avg_pool(x, wanted), averages, equal_nan=True)
