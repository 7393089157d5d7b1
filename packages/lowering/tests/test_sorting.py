"""Orders that no layer gives: long rows are merged, truth values are numbers, and one element is in order."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering_programs import Oracle, aten, run, targets, whole
from torch.export import Dim

from torchkiln_core.call import OpCall
from torchkiln_core.rejection import Rejection
from torchkiln_lowering import AtenLowering
from torchkiln_lowering.decompositions import sorting
from torchkiln_lowering.decompositions.sorting import CHUNK, MAX_ORDERED, MAX_SORTED

INF, NAN = float("inf"), float("nan")
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64)
NAMES = """
sort.default sort.stable topk.default isnan.default logical_not.default gather.default reshape.default full_like.default transpose.int
scatter.value cumsum.default arange.start_step
"""
SORTS = (aten.sort.default, aten.sort.stable, aten.topk.default)


class Layers(Oracle):
    """Sorts numbers in static dimensions of up to ``MAX_ORDERED``, as engines do."""

    def __init__(self) -> None:
        super().__init__(*(operator.attrgetter(name)(aten) for name in NAMES.split()))

    def reject(self, call: OpCall) -> Rejection | None:
        if call.target in SORTS:
            value = call.arguments["self"].meta["val"]
            k = call.arguments.get("k", value.shape[call.arguments["dim"]] if value.dim() else 0)
            if not isinstance(k, int) or not 1 <= k <= MAX_ORDERED or value.dtype == torch.bool:
                return Rejection.of(call, "static", "too many")
        return super().reject(call)


def _random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Equal elements, and the outermost of the dtype."""
    generator = torch.Generator().manual_seed(0)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    x = torch.randint(-500, 500, shape, generator=generator).to(dtype)
    chance = torch.rand(shape, generator=generator)
    edges = [NAN, INF, -INF, -0.0] if dtype.is_floating_point else [torch.iinfo(dtype).max, torch.iinfo(dtype).min]
    for place, edge in enumerate(edges):
        x = torch.where((chance > place / 8) & (chance < (place + 1) / 8), torch.tensor(edge, dtype=dtype), x)
    return x


def _agrees(compute: Callable[..., Any], x: torch.Tensor, shapes: Any = None, others: tuple[torch.Tensor, ...] = ()) -> None:
    lowered = AtenLowering().lower(whole(compute, (x,), shapes and ((shapes,),)), Layers())
    nodes = [node for node in lowered.module.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    refused = [str(node.target) for node in nodes if Layers().reject(OpCall.from_node(node)) is not None]
    assert set(refused) <= {"aten.sym_size.int"}
    for item in (x, *others):
        for mine, theirs in zip(run(lowered, item), compute(item), strict=True):
            torch.testing.assert_close(mine, theirs, equal_nan=True, rtol=0, atol=0)


def _sort(dim: int, descending: bool) -> Callable[[torch.Tensor], Any]:
    return lambda x: tuple(torch.sort(x, dim=dim, descending=descending, stable=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
@pytest.mark.parametrize("size", [MAX_ORDERED + 1, 2 * CHUNK, 2 * CHUNK + 1, 9000])
def test_long_rows(size: int, descending: bool, dtype: torch.dtype) -> None:
    _agrees(_sort(1, descending), _random(2, size, 2, dtype=dtype))


@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
def test_the_longest_rows(descending: bool) -> None:
    _agrees(_sort(0, descending), _random(MAX_SORTED))


@pytest.mark.parametrize("number", [NAN, INF, -INF, 0.0])
@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
def test_equal_elements_keep_their_order(descending: bool, number: float) -> None:
    """Also where they equal what fills the last chunk."""
    _agrees(_sort(-1, descending), torch.full((1, 5000), number))


def test_large_integers() -> None:
    _agrees(_sort(-1, False), 2**53 + torch.arange(5000).flip(0) % 999)


def test_other_dimensions_are_dynamic() -> None:
    shapes = {0: Dim("n", min=1, max=9), 2: Dim("m", min=1, max=9)}
    _agrees(_sort(1, True), _random(3, 4000, 2), shapes, (_random(1, 4000, 3),))


def test_permuted_memory_of_eight_dimensions() -> None:
    _agrees(_sort(0, False), _random(1, 2, 1, 1, 3, 1, 1, 4000).permute(7, 6, 5, 4, 3, 2, 1, 0))


@pytest.mark.parametrize("largest", [False, True])
def test_more_than_a_layer_takes(largest: bool) -> None:
    x = torch.randperm(6000, generator=torch.Generator().manual_seed(0)).float().view(1, 6000, 1)
    _agrees(lambda x: (torch.topk(x, MAX_ORDERED + 1, 1, largest).values,), x)


@pytest.mark.parametrize("descending", [False, True], ids=["ascending", "descending"])
@pytest.mark.parametrize("shape", [(3, 20), (2, 4100)], ids=str)
def test_truth_values(shape: tuple[int, ...], descending: bool) -> None:
    _agrees(_sort(-1, descending), _random(*shape, dtype=torch.bool))
    _agrees(lambda x: (torch.sort(x, 0, descending).values,), _random(*shape, dtype=torch.bool))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0), (0, 1), (3, 1)], ids=str)
def test_one_element_and_none(shape: tuple[int, ...]) -> None:
    for dtype in (torch.float32, torch.int64, torch.bool):
        _agrees(lambda x: tuple(torch.sort(x)), _random(*shape, dtype=dtype))
    if not shape:
        _agrees(lambda x: tuple(torch.topk(x, 1)), torch.tensor(NAN))


@pytest.mark.parametrize(
    ("compute", "size"),
    [
        (lambda x: x.sort().values, MAX_SORTED + 1),
        (lambda x: x.topk(MAX_ORDERED + 1).values, MAX_SORTED + 1),
        (lambda x: x.topk(0), 5),
        (lambda x: x.sort(), 5000),
        (lambda x: x.sort(stable=False).indices, 5000),
        (lambda x: (x > 0).sort(), 50),
        (lambda x: x.topk(MAX_ORDERED + 1), 5000),
    ],
    ids=["sort", "topk", "none", "open indices", "open indices of sort.stable", "open indices of truth values", "open indices of topk"],
)
def test_stays_in_torch(compute: Any, size: int) -> None:
    found = targets(AtenLowering().lower(whole(compute, (_random(1, size),)), Layers()))
    assert len(set(SORTS) & set(found)) == 1
    assert aten.scatter.value not in found


def test_values_alone_are_gathered_in_one_merge_less() -> None:
    """Four chunks: two merges, of which the last needs no keys."""
    found = targets(AtenLowering().lower(whole(lambda x: x.sort().values, (_random(1, 8000),)), Layers()))
    assert found.count(aten.scatter.value) == 2
    assert found.count(aten.gather.default) == 12 + 2 + 13 + 1 + 1


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_row_in_small_chunks(data: st.DataObject) -> None:
    number = st.sampled_from([-INF, -2.0, -0.0, 0.0, 1.0, INF, NAN])
    x = torch.tensor([data.draw(st.lists(number, min_size=5, max_size=40))])
    descending = data.draw(st.booleans())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorting, "CHUNK", 4)
        order = sorting._order(x, descending)
    assert torch.equal(order, torch.sort(x, descending=descending, stable=True).indices)
