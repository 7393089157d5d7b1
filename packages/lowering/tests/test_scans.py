"""Running extremes and sums of exponentials: values and indices of eager, in a number of calls that grows with the digits of the size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering_programs import Oracle, aten, run, targets, whole
from torch.export import Dim

from torchkiln_lowering import AtenLowering

INF, NAN = float("inf"), float("nan")
EXTREMES = (torch.cummax, torch.cummin)
SCANS = (*EXTREMES, torch.logcumsumexp)
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool)
NAMES = "cumsum.default isnan.default clamp.default ne.Scalar full_like.default"
EDGES = torch.tensor([-INF, -INF, 0.0, -0.0, 2.0, 2.0, -1e30, 1e30, INF, 1.0, -INF, INF, NAN, 3.0, NAN, INF, -INF])


def oracle() -> Oracle:
    return Oracle(*(getattr(getattr(aten, name.split(".")[0]), name.split(".")[1]) for name in NAMES.split()))


def _random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    return torch.randint(-4, 5, shape, generator=generator).to(dtype)


def _agrees(compute: Callable[..., Any], x: torch.Tensor, shapes: Any = None, others: tuple[torch.Tensor, ...] = ()) -> None:
    lowered = AtenLowering().lower(whole(compute, (x,), shapes and ((shapes,),)), oracle())
    allowed = oracle().targets | {aten.sym_size.int}
    assert [call for call in targets(lowered) if isinstance(call, torch._ops.OpOverload) and call not in allowed] == []
    for item in (x, *others):
        want, got = compute(item), run(lowered, item)
        if isinstance(want, torch.Tensor):
            rtol = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}.get(x.dtype, 2e-6)
            torch.testing.assert_close(got[0], want, equal_nan=True, rtol=rtol, atol=1e-6)
            continue
        for mine, theirs in zip(got, want, strict=True):
            torch.testing.assert_close(mine, theirs, equal_nan=True, rtol=0, atol=0)
            numbers = theirs == theirs
            assert torch.equal(mine[numbers].signbit(), theirs[numbers].signbit())


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("function", EXTREMES)
def test_extremes(function: Any, dim: int, dtype: torch.dtype) -> None:
    _agrees(lambda x: function(x, dim), _random(3, 21, 5, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES[:3], ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_logcumsumexp(dim: int, dtype: torch.dtype) -> None:
    _agrees(lambda x: torch.logcumsumexp(x, dim), _random(3, 21, 5).to(dtype))


@pytest.mark.parametrize("function", SCANS)
def test_infinities_nan_and_zeros(function: Any) -> None:
    """From every place on, so that each of them is first, between and last."""
    for start in range(len(EDGES)):
        for x in (EDGES[start:], EDGES[start:].flip(0), -EDGES[start:]):
            _agrees(lambda x: function(x, 0), x)


@pytest.mark.parametrize("function", SCANS)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0), (0, 3), (3, 1), (1, 1, 2, 1, 3, 1, 1, 5)], ids=str)
def test_scalars_empty_tensors_and_many_dimensions(function: Any, shape: tuple[int, ...]) -> None:
    for dim in {0, -1}:
        _agrees(lambda x, dim=dim: function(x, dim), _random(*shape))
        if not any(shape):
            _agrees(lambda x, dim=dim: function(x, dim), torch.full(shape, NAN))


@pytest.mark.parametrize("function", EXTREMES)
def test_large_integers(function: Any) -> None:
    x = torch.tensor([2**53, 2**53 + 1, 2**53, -(2**63), 2**63 - 1, 2**63 - 1, 2**31, -(2**53) - 1])
    for item in (x, x.flip(0)):
        _agrees(lambda x: function(x, 0), item)


def test_sums_beyond_the_range_of_exponentials() -> None:
    _agrees(lambda x: torch.logcumsumexp(x, 1), torch.tensor([[900.0, 901.0, 900.5], [-900.0, -901.0, -899.0], [3e38, 3e38, 3e38]]))
    lowest = torch.finfo(torch.float32).min
    _agrees(lambda x: torch.logcumsumexp(x, 0), torch.tensor([-INF, lowest, lowest, -lowest, -lowest, INF]))


@pytest.mark.parametrize("function", SCANS)
def test_other_dimensions_are_dynamic(function: Any) -> None:
    shapes = {0: Dim("n", min=0, max=64), 2: Dim("m", min=1, max=64)}
    _agrees(lambda x: function(x, 1), _random(3, 6, 4), shapes, (_random(5, 6, 1), _random(0, 6, 7)))


@pytest.mark.parametrize("function", SCANS)
def test_a_dynamic_dimension_stays_in_torch(function: Any) -> None:
    program = whole(lambda x: function(x, -1), (_random(3, 4),), (({1: Dim("n", min=2, max=64)},),))
    found = targets(AtenLowering().lower(program, oracle()))
    assert getattr(aten, function.__name__).default in found
    assert aten.cat.default not in found


@pytest.mark.parametrize("function", SCANS)
def test_permuted_memory(function: Any) -> None:
    _agrees(lambda x: function(x, 1), _random(4, 5, 6).permute(2, 0, 1))


def test_values_alone_cost_no_indices() -> None:
    lowered = targets(AtenLowering().lower(whole(lambda x: torch.cummax(x, 0).values, (_random(9, dtype=torch.int64),)), oracle()))
    assert lowered.count(aten.cat.default) == 4
    assert aten.arange.default not in lowered


def test_long_rows_take_few_calls() -> None:
    """And sums in pairs are nearer to the exact ones than eager's, which go from element to element."""
    x = torch.randn(2, 100_000, generator=torch.Generator().manual_seed(0))
    lowered = AtenLowering().lower(whole(lambda x: torch.logcumsumexp(x, 1), (x,)), oracle())
    assert targets(lowered).count(aten.cat.default) == 17
    torch.testing.assert_close(run(lowered, x)[0], torch.logcumsumexp(x.double(), 1).float(), rtol=1e-6, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_row(data: st.DataObject) -> None:
    number = st.sampled_from([-INF, -2.0, -0.0, 0.0, 1.0, 5.0, INF, NAN])
    x = torch.tensor(data.draw(st.lists(number, min_size=1, max_size=20)))
    function = data.draw(st.sampled_from(SCANS))
    _agrees(lambda x: function(x, 0), x)
