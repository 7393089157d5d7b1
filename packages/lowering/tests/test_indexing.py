"""Operators that read and write by position: equal to eager, in a number of calls that no size changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering_programs import Oracle, aten, run, targets, whole

from torchkiln_lowering import AtenLowering
from torchkiln_lowering.decompositions.accumulate import MAX_COMPARED, reduced

# PyTorch warns of its own operators, once.
pytestmark = [
    pytest.mark.filterwarnings("ignore:index_reduce:UserWarning"),
    pytest.mark.filterwarnings("ignore:The reduce argument:UserWarning"),
]
_MORE = """
prod.dim_int ne.Scalar div.Tensor_mode slice_scatter.default index_select.default gather.default cumsum.default logical_not.default
clamp_min.default clamp_min.Tensor full_like.default index_put.default select_scatter.default
sum.default any.dims any.dim bitwise_and.Tensor bitwise_or.Tensor reshape.default empty.memory_format new_empty.default
minimum.default sort.default sort.stable index.Tensor
new_zeros.default arange.start arange.start_step constant_pad_nd.default add.Scalar scalar_tensor.default zeros_like.default
"""


def oracle() -> Oracle:
    extra = [getattr(getattr(aten, name.split(".")[0]), name.split(".")[1]) for name in _MORE.split()]
    return Oracle(*extra)


def _number(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    return torch.randint(-4, 5, shape, generator=generator).to(dtype)


def _index(*shape: int, below: int) -> torch.Tensor:
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(1))


REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("include_self", [True, False], ids=["with self", "without self"])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_scatter_reduce(reduce: str, include_self: bool, dtype: torch.dtype) -> None:
    """The index is shorter than the source, and than ``self`` in the other dimension."""
    x, source = _number(5, 6, dtype=dtype), _number(7, 6, dtype=dtype, seed=3)

    def compute(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return torch.scatter_reduce(x, 0, index, source, reduce, include_self=include_self)

    _agrees(compute, x, _index(4, 3, below=5), source)


@pytest.mark.parametrize("include_self", [True, False], ids=["with self", "without self"])
@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
def test_index_reduce(reduce: str, include_self: bool) -> None:
    def compute(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return torch.index_reduce(x, 1, index, source, reduce, include_self=include_self)

    _agrees(compute, _number(2, 5, 3), _index(4, below=5), _number(2, 4, 3, seed=3))


CALLS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "scatter_add": (lambda x, i, s: x.scatter_add(-1, i, s), (_number(3, 4), _index(3, 5, below=4), _number(3, 5))),
    "scatter add": (lambda x, i, s: x.scatter(0, i, s, reduce="add"), (_number(5, 4), _index(2, 4, below=5), _number(2, 4))),
    "scatter multiply": (lambda x, i: x.scatter(0, i, 2.0, reduce="multiply"), (_number(5, 4), _index(2, 4, below=5))),
    "index_add": (lambda x, i, s: x.index_add(0, i, s, alpha=2), (_number(5, 4), _index(6, below=5), _number(6, 4))),
    "index_put accumulate": (
        lambda x, i, s: x.index_put((i, -1 - i), s, accumulate=True),
        (_number(3, 3, 2), _index(5, below=3), _number(5, 2)),
    ),
    "index_put of a later dimension": (
        lambda x, i, s: aten.index_put(x, [None, i, i], s),
        (_number(2, 3, 3, 2), torch.tensor([2, 0]), _number(2, 2, 2, seed=4)),
    ),
    "index_put accumulate of a later dimension": (
        lambda x, i, s: aten.index_put(x, [None, i], s, True),
        (_number(2, 3, 4), torch.tensor([[2, 0], [2, 1]]), _number(2, 2, 2, 4, seed=4)),
    ),
    "index_copy": (lambda x, i, s: x.index_copy(-1, i, s), (_number(3, 5), torch.tensor([3, 0]), _number(3, 2, seed=2))),
    "index_copy of bools": (
        lambda x, i, s: x.index_copy(0, i, s),
        (_number(5, 2, dtype=torch.bool), torch.tensor([3, 0]), _number(2, 2, dtype=torch.bool, seed=2)),
    ),
    "index_fill of bools": (lambda x, i: x.index_fill(0, i, True), (_number(5, 2, dtype=torch.bool), torch.tensor([3, 0]))),
    "select_scatter": (lambda x, s: x.select_scatter(s, 1, -1), (_number(3, 4), _number(3, seed=2))),
    "take": (torch.take, (_number(3, 4), torch.tensor([[0, -1], [5, -12]]))),
    "take of a scalar": (torch.take, (_number(3, 4), torch.tensor(7))),
    "put": (torch.put, (_number(3, 4).T, torch.tensor([[0, -1], [5, -11]]), _number(4, seed=2))),
    "put that adds": (
        lambda x, i, s: x.put(i, s, accumulate=True),
        (_number(3, 4), torch.tensor([0, -1, 11, 0, -12]), _number(5, seed=2)),
    ),
    "put into a scalar": (torch.put, (torch.tensor(1.0), torch.tensor(-1), torch.tensor([2.0]))),
    "put of bools": (
        lambda x, i, s: x.put(i, s, accumulate=True),
        (_number(3, 4, dtype=torch.bool), torch.tensor([0, 1, 1, 2]), _number(2, 2, dtype=torch.bool, seed=2)),
    ),
    "one_hot": (lambda x: F.one_hot(x, 5), (_index(2, 3, 2, below=5),)),
    "one_hot of a scalar": (lambda x: F.one_hot(x, 3), (torch.tensor(2),)),
    "one_hot of nothing": (lambda x: F.one_hot(x, 3), (torch.empty(0, 2, dtype=torch.int64),)),
    "unfold": (lambda x: x.unfold(1, 3, 2).exp(), (_number(2, 8, 3),)),
    "unfold_copy": (lambda x: torch.unfold_copy(x, 0, 2, 2), (_number(7, 3),)),
    "fold": (lambda x: F.fold(x, (5, 6), (2, 3), dilation=(2, 1), padding=(1, 0), stride=(1, 2)), (_number(2, 12, 10),)),
    "fold unbatched": (lambda x: F.fold(x, (4, 4), 2), (_number(12, 9),)),
    "diagonal_scatter": (lambda x, s: x.diagonal_scatter(s, 1, -1, 0), (_number(4, 2, 3), _number(2, 3, seed=2))),
    "diagonal_scatter below": (lambda x, s: x.diagonal_scatter(s, -1), (_number(4, 3), _number(3, seed=2))),
    "masked_scatter": (
        lambda x, m, s: x.masked_scatter(m, s),
        (_number(3, 4), torch.tensor([True, False, True, True]), _number(3, 5, seed=2)),
    ),
    "searchsorted": (torch.searchsorted, (_number(2, 6).sort().values, _number(2, 5, seed=2))),
    "searchsorted right": (
        lambda row, x: torch.searchsorted(row, x, right=True, out_int32=True),
        (_number(6).sort().values, torch.tensor([[0.0, float("nan")], [-9.0, float("inf")]])),
    ),
    "searchsorted unsorted": (
        lambda row, x, order: torch.searchsorted(row, x, sorter=order),
        (_number(6), _number(3, seed=2), _number(6).argsort()),
    ),
    "bucketize a scalar": (torch.bucketize, (torch.tensor(1.0), _number(6, seed=2).sort().values)),
    "cumprod": (lambda x: torch.cumprod(x, 1), (_number(3, 4),)),
    "bucketize": (torch.bucketize, (_number(2, 5), _number(6, seed=2).sort().values)),
    "isin many": (torch.isin, (_number(2, 5, dtype=torch.int64), torch.arange(40))),
}


@pytest.mark.parametrize("name", CALLS)
def test_call(name: str) -> None:
    _agrees(CALLS[name][0], *CALLS[name][1])


def test_one_hot_of_a_class_outside_is_zeros() -> None:
    """Eager raises, which an engine cannot."""
    lowered = AtenLowering().lower(whole(lambda x: F.one_hot(x, 3), (torch.tensor([0, 1, 2]),)), oracle())
    (got,) = run(lowered, torch.tensor([-1, 2, 3]))
    assert got.tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 0]]


def test_sizes_of_one_hot_and_put_may_be_symbolic() -> None:
    rows = {0: torch.export.Dim("rows", min=2, max=40)}

    def compute(x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.one_hot(index, 7), x.put(index, x[:, 0])

    inputs = (_number(4, 3), torch.tensor([0, -1, 5, 3]).remainder(7))
    lowered = AtenLowering().lower(whole(compute, inputs, ((rows, rows),)), oracle())
    assert {aten.one_hot.default, aten.put.default}.isdisjoint(targets(lowered))
    inputs = (_number(7, 3), torch.arange(7))
    for got, want in zip(run(lowered, *inputs), compute(*inputs), strict=True):
        torch.testing.assert_close(got, want)


def _agrees(compute: Callable[..., Any], *inputs: torch.Tensor) -> None:
    lowered = AtenLowering().lower(whole(compute, inputs), oracle())
    assert [call for call in targets(lowered) if isinstance(call, torch._ops.OpOverload) and call not in oracle().targets] == []
    want, (got,) = compute(*inputs), run(lowered, *inputs)
    # Integers in floating point: sums are exact, but eager rounds every step of a half product.
    loose = {"rtol": 2e-2, "atol": 1e-2} if want.dtype in (torch.float16, torch.bfloat16) else {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(got, want, equal_nan=True, **loose)


def test_nan_and_infinity_stay_in_their_places() -> None:
    source = torch.tensor([float("inf"), float("nan"), 1.0])
    inputs = (torch.zeros(4), torch.tensor([0, 2, 3]), source)
    _agrees(lambda x, i, s: x.scatter_add(0, i, s), *inputs)
    _agrees(lambda x, i, s: x.scatter_reduce(0, i, s, "amax"), *inputs)


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, i: x.scatter_add(0, i, x),
        lambda x, i: x.scatter_reduce(0, i, x, "mean", include_self=False),
        lambda x, i: x.index_reduce(0, i[:, 0], x, "amax"),
        lambda x, i: x.index_put((i[:, 0],), x, accumulate=True),
        lambda x, i: x.select_scatter(x[0], 0, -1),
        lambda x, i: x.take(i),
        lambda x, i: F.fold(x.reshape(1, -1).expand(4, -1), (len(x) + 1, len(x) + 1), 2),
    ],
    ids=["scatter_add", "scatter_reduce", "index_reduce", "index_put", "select_scatter", "take", "fold"],
)
def test_the_graph_does_not_grow_with_sizes(compute: Any) -> None:
    counts = set()
    for size in (3, 48):
        program = whole(compute, (_number(size, size), _index(size, size, below=size)))
        counts.add(len(targets(AtenLowering().lower(program, oracle()))))
    assert len(counts) == 1


def test_large_comparisons_stay_in_torch() -> None:
    size = int(MAX_COMPARED**0.5) + 1
    program = whole(lambda x, i: x.scatter_add(0, i, x), (torch.zeros(size), torch.zeros(size, dtype=torch.int64)))
    assert targets(AtenLowering().lower(program, oracle())) == [aten.scatter_add.default]


def test_a_returned_view_keeps_its_strides() -> None:
    lowered = AtenLowering().lower(whole(lambda x: x.unfold(0, 3, 1), (_number(6),)), oracle())
    assert targets(lowered) == [aten.unfold.default]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_reduction_by_index(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    dim = data.draw(st.integers(0, len(shape) - 1))
    length = data.draw(st.integers(1, 5))
    other = [length if axis == dim else size for axis, size in enumerate(shape)]
    dtype = data.draw(st.sampled_from([torch.float32, torch.int64]))
    reduce, include_self = data.draw(st.sampled_from(REDUCTIONS)), data.draw(st.booleans())
    x, source, index = _number(*shape, dtype=dtype), _number(*other, dtype=dtype, seed=5), _index(*other, below=shape[dim])
    want = x.scatter_reduce(dim, index, source, reduce, include_self=include_self)
    torch.testing.assert_close(reduced(x, dim, index, source, reduce, include_self), want)
