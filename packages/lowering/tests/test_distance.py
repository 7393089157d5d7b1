"""Distances and bags of embeddings against eager: every norm and mode, edge values, empty bags, and no leak between rows."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lowering_programs import ELEMENTARY, Oracle, aten, capture, run, targets, whole
from torch.export import Dim

from torchkiln_lowering import AtenLowering

NAN, INF = math.nan, math.inf
ORACLE = Oracle(
    *(aten.matmul.default, aten.transpose.int, aten.clamp_min.default, aten.index_select.default, aten.div.Tensor_mode),
    *(aten.ne.Tensor, aten.ne.Scalar, aten.full_like.default, aten.fill.Scalar),
    base=ELEMENTARY,
)
NORMS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, INF)


def _number(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _agrees(compute: Any, *inputs: torch.Tensor, dynamic_shapes: Any = None, others: Any = (), **loose: float) -> None:
    lowered = AtenLowering().lower(capture(compute, inputs, dynamic_shapes and (dynamic_shapes,)), ORACLE)
    left = [call for call in targets(lowered) if isinstance(call, torch._ops.OpOverload) and call not in ORACLE.targets]
    assert [call for call in left if not call._schema.name.startswith("aten::sym_")] == []
    for given in (inputs, *others):
        torch.testing.assert_close(run(lowered, *given)[0], compute(*given), equal_nan=True, **loose)


@pytest.mark.parametrize("p", NORMS)
def test_cdist(p: float) -> None:
    left, right = _number(2, 1, 5, 3), _number(4, 6, 3, seed=1)
    right[0, 0] = left[0, 0, 0]
    right[1, 1, 0], right[1, 2, 1] = INF, NAN
    _agrees(lambda x, y: torch.cdist(x, y, p), left, right)


@pytest.mark.parametrize("mode", ["use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist", "use_mm_for_euclid_dist_if_necessary"])
@pytest.mark.parametrize("rows", [4, 30])
def test_cdist_takes_products_where_eager_does(mode: str, rows: int) -> None:
    def compute(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cdist(x, y, compute_mode=mode)

    left = _number(rows, 3)
    inputs = (left, left[:3] + 1e-4)
    by_product = mode == "use_mm_for_euclid_dist" or (rows > 25 and mode.endswith("necessary"))
    assert (aten.matmul.default in targets(AtenLowering().lower(capture(compute, inputs), ORACLE))) == by_product
    # What a product cancels is noise: the square of a distance is off by the last digits of the squared lengths.
    _agrees(compute, *inputs, **({"rtol": 1e-5, "atol": 2e-3} if by_product else {}))


@pytest.mark.parametrize("p", NORMS)
def test_pdist(p: float) -> None:
    x = _number(7, 3)
    x[1, 0], x[2, 1], x[4] = INF, NAN, x[3]
    _agrees(lambda x: F.pdist(x, p), x)


@pytest.mark.parametrize("rows", [2, 3, 64, 1023])
def test_pdist_finds_every_pair(rows: int) -> None:
    _agrees(lambda x: F.pdist(x, 1.0), torch.arange(float(rows)).unsqueeze(1) ** 1.5)


WEIGHT = _number(6, 3)
WEIGHT[4], WEIGHT[5, 1] = NAN, INF
INDICES = torch.tensor([0, 5, 2, 2, 4, 1, 3, 0])
OFFSETS = torch.tensor([0, 2, 2, 5, 7, 8])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 0, 2])
@pytest.mark.parametrize("last", [False, True])
def test_embedding_bag(mode: str, padding: int | None, last: bool) -> None:
    def compute(weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(indices, weight, offsets, mode=mode, padding_idx=padding, include_last_offset=last)

    _agrees(compute, WEIGHT, INDICES, OFFSETS)
    _agrees(compute, WEIGHT, INDICES.flip(0).to(torch.int32), OFFSETS.to(torch.int32))


def test_embedding_bag_with_weights_per_sample() -> None:
    _agrees(lambda w, i, o, s: F.embedding_bag(i, w, o, mode="sum", per_sample_weights=s), WEIGHT, INDICES, OFFSETS, _number(8, seed=3))


def test_embedding_bag_of_equal_bags_and_half_weights() -> None:
    weight = WEIGHT.to(torch.float16)
    _agrees(lambda w, i: F.embedding_bag(i, w, mode="mean"), weight, INDICES.reshape(4, 2), rtol=2e-3, atol=1e-3)


def test_sizes_may_be_symbolic() -> None:
    rows = Dim("rows", min=2, max=24)
    _agrees(
        torch.cdist,
        _number(4, 3),
        _number(5, 3),
        dynamic_shapes=({0: rows}, None),
        others=[(_number(9, 3), _number(5, 3))],
    )
    bags, total = Dim("bags", min=2, max=16), Dim("total", min=2, max=64)
    _agrees(
        lambda w, i, o: F.embedding_bag(i, w, o, mode="max"),
        *(WEIGHT, INDICES, OFFSETS),
        dynamic_shapes=(None, {0: total}, {0: bags}),
        others=[(WEIGHT, INDICES[:5], OFFSETS[:3])],
    )


def test_a_dtype_that_metadata_gets_wrong_is_put_right() -> None:
    def compute(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.copysign(x, y).exp()

    inputs = (_number(4), torch.tensor([1.0, -1.0, 0.0, -0.0]))
    lowered = AtenLowering().lower(whole(compute, inputs), Oracle(torch.ops.prims.signbit.default, torch.ops.prims.where.default))
    for node in lowered.module.graph.find_nodes(op="call_function", target=torch.ops.prims.signbit.default):
        assert node.meta["val"].dtype == torch.bool
    torch.testing.assert_close(run(lowered, *inputs)[0], compute(*inputs))
