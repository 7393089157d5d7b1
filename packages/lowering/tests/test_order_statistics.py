"""Medians and elements by rank: eager's values, where nobody reads the indices that eager leaves open."""

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
from torchkiln_lowering.decompositions.sorting import MAX_ORDERED, MAX_SORTED

INF, NAN = float("inf"), float("nan")
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64)
NAMES = """
topk.default isnan.default any.dim logical_not.default div.Tensor_mode clamp_min.default gather.default reshape.default full_like.default
"""
OPERATORS = (aten.median.default, aten.nanmedian.default, aten.median.dim, aten.nanmedian.dim, aten.kthvalue.default)
CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "median": lambda x: x.median(),
    "nanmedian": lambda x: x.nanmedian(),
    "median along one": lambda x: x.median(1).values,
    "nanmedian along one": lambda x: x.nanmedian(1, keepdim=True).values,
    "median along the last": lambda x: x.median(-1, keepdim=True).values,
    "nanmedian along the first": lambda x: x.nanmedian(0).values,
    "kthvalue of the smallest": lambda x: x.kthvalue(1).values,
    "kthvalue of the largest": lambda x: x.kthvalue(x.shape[-2], -2).values,
    "kthvalue between": lambda x: x.kthvalue(2, 0, keepdim=True).values,
}


def _operator(name: str) -> Any:
    packet, overload = name.split(".")
    return getattr(getattr(aten, packet), overload)


def oracle() -> Oracle:
    return Oracle(*map(_operator, NAMES.split()))


def _random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def _lowered(compute: Callable[..., Any], x: torch.Tensor, shapes: Any = None) -> Any:
    return AtenLowering().lower(whole(compute, (x,), shapes and ((shapes,),)), oracle())


def _agrees(compute: Callable[..., Any], x: torch.Tensor, shapes: Any = None, others: tuple[torch.Tensor, ...] = ()) -> None:
    lowered = _lowered(compute, x, shapes)
    allowed = oracle().targets | {aten.sym_size.int}
    assert [call for call in targets(lowered) if isinstance(call, torch._ops.OpOverload) and call not in allowed] == []
    for item in (x, *others):
        want = compute(item)
        for mine, theirs in zip(run(lowered, item), want if isinstance(want, tuple) else (want,), strict=True):
            torch.testing.assert_close(mine, theirs, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("shape", [(3, 7, 4), (2, 6, 5), (4, 1, 3)], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_equals_eager(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    _agrees(CALLS[name], _random(*shape, dtype=dtype))


@pytest.mark.parametrize("name", CALLS)
def test_nan_and_infinities(name: str) -> None:
    x = _random(6, 7, 8)
    x[0, :, 0], x[1, :4, 1], x[2, 2:, 2], x[:, 1, 3], x[3, :5, 3] = NAN, NAN, NAN, INF, -INF
    _agrees(CALLS[name], x)
    _agrees(CALLS[name], torch.full((2, 3, 4), NAN))


@pytest.mark.parametrize("name", CALLS)
def test_large_integers(name: str) -> None:
    x = 2**53 + _random(3, 4, 5, dtype=torch.int64)
    _agrees(CALLS[name], x)
    _agrees(CALLS[name], -x)


@pytest.mark.parametrize("function", [torch.median, torch.nanmedian, lambda x, *args: torch.kthvalue(x, 1, *args)])
@pytest.mark.parametrize("number", [3.0, NAN])
def test_one_element_has_one_index(function: Any, number: float) -> None:
    _agrees(lambda x: function(x, 0), torch.tensor(number))
    _agrees(lambda x: function(x, -1, True), torch.tensor(number))
    _agrees(lambda x: function(x, 1), torch.full((3, 1, 2), number))
    _agrees(lambda x: function(x, 1, True), torch.full((0, 1, 2), number))


def test_scalars_and_empty_rows() -> None:
    for function in (torch.median, torch.nanmedian):
        _agrees(lambda x, function=function: function(x), torch.tensor(NAN))
        _agrees(lambda x, function=function: function(x), torch.tensor([[4]]))
        _agrees(lambda x, function=function: function(x, 0).values, torch.empty(3, 0))


def test_many_dimensions_in_permuted_memory() -> None:
    x = _random(1, 2, 1, 5, 1, 3, 1, 2).permute(7, 6, 5, 4, 3, 2, 1, 0)
    for name in ("median", "nanmedian", "kthvalue of the smallest"):
        _agrees(CALLS[name], x)
    _agrees(lambda x: x.median(4).values, x)
    _agrees(lambda x: x.nanmedian(-4, keepdim=True).values, x)


@pytest.mark.parametrize("name", ["median along one", "nanmedian along one", "kthvalue of the largest"])
def test_other_dimensions_are_dynamic(name: str) -> None:
    shapes = {0: Dim("n", min=0, max=64), 2: Dim("m", min=1, max=64)}
    _agrees(CALLS[name], _random(3, 6, 4), shapes, (_random(5, 6, 1), _random(0, 6, 7)))


def test_a_rank_in_a_dynamic_dimension() -> None:
    shapes = {1: Dim("n", min=3, max=64)}
    _agrees(lambda x: x.kthvalue(3, 1).values, _random(3, 6), shapes, (_random(2, 3), _random(2, 40)))


STAY: dict[str, tuple[Callable[[torch.Tensor], Any], torch.Tensor, Any]] = {
    "median of a dynamic dimension": (lambda x: x.median(1).values, _random(2, 6), {1: Dim("n", min=2, max=9)}),
    "median of a dynamic tensor": (lambda x: x.median(), _random(2, 6), {0: Dim("n", min=2, max=9)}),
    "indices that are read": (lambda x: x.median(1), _random(2, 6), None),
    "only indices": (lambda x: x.nanmedian(1).indices, _random(2, 6), None),
    "index of a rank": (lambda x: x.kthvalue(2).indices, _random(2, 6), None),
    "empty": (lambda x: x.median(), torch.empty(0), None),
    "more than is merged": (lambda x: x.median(1).values, _random(1, MAX_SORTED + 1), None),
    "all of more than is merged": (lambda x: x.nanmedian(), _random(2, MAX_SORTED // 2 + 1), None),
    "a rank in the middle of many": (lambda x: x.kthvalue(MAX_ORDERED + 1).values, _random(1, MAX_SORTED + 1), None),
}


@pytest.mark.parametrize("name", STAY)
def test_stays_in_torch(name: str) -> None:
    function, x, shapes = STAY[name]
    found = targets(_lowered(function, x, shapes))
    assert len([call for call in found if call in OPERATORS]) == 1
    assert aten.topk.default not in found


@pytest.mark.parametrize("k", [1, MAX_ORDERED, MAX_ORDERED + 9, 2 * MAX_ORDERED + 8])
def test_ranks_are_counted_from_the_nearer_end(k: int) -> None:
    x = torch.randperm(2 * MAX_ORDERED + 8, generator=torch.Generator().manual_seed(0))[None].float()
    _agrees(lambda x: x.kthvalue(k).values, x)


def test_the_median_of_as_many_as_a_layer_orders_half_of() -> None:
    x = torch.randperm(2 * MAX_ORDERED, generator=torch.Generator().manual_seed(0)).float()
    _agrees(CALLS["median"], x)
    _agrees(CALLS["nanmedian"], torch.where(x > 5000, NAN, x))


def test_middles_and_ranks_of_rows_that_are_merged() -> None:
    x = torch.randperm(2 * MAX_ORDERED + 101, generator=torch.Generator().manual_seed(0))[None].float()
    x = torch.cat([x, torch.where(x > 1000, NAN, x), x.where(x > 7000, -INF)])
    extra = Oracle(*oracle().targets, *map(_operator, "sort.stable transpose.int arange.start_step scatter.value cumsum.default".split()))
    for compute in (CALLS["median along one"], CALLS["nanmedian along one"], lambda x: x.kthvalue(MAX_ORDERED + 40).values):
        lowered = AtenLowering().lower(whole(compute, (x,)), extra)
        assert not set(OPERATORS) & set(targets(lowered))
        torch.testing.assert_close(run(lowered, x)[0], compute(x), equal_nan=True, rtol=0, atol=0)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_row(data: st.DataObject) -> None:
    number = st.sampled_from([-INF, -2.0, 0.0, 1.0, 5.0, INF, NAN])
    x = torch.tensor(data.draw(st.lists(number, min_size=1, max_size=12)))
    k = data.draw(st.integers(1, len(x)))
    for function in (torch.median, torch.nanmedian, lambda x: x.kthvalue(k).values):
        _agrees(function, x)
