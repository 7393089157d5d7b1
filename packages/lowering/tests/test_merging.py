"""Chains of casts, transposes and reshapes; constants."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.fx
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering_programs import aten, run, targets, whole

from torchkiln_lowering import AtenLowering
from torchkiln_lowering.passes.constants import MAX_FOLDED_BYTES, fold_constants, why_not_folded
from torchkiln_lowering.passes.merging import is_exact, merge_casts, merge_reshapes, merge_transposes
from torchkiln_testing import assert_keeps, assert_rewrites

X = torch.arange(24.0).view(2, 3, 4) / 7
CAST = aten._to_copy.default


def casts(*dtypes: torch.dtype) -> Any:
    def compute(x: torch.Tensor) -> torch.Tensor:
        for dtype in dtypes:
            x = aten._to_copy(x, dtype=dtype)
        return x + 1

    return compute


def test_casts_up_and_back() -> None:
    after = assert_rewrites(merge_casts, casts(torch.float64, torch.float16, torch.float32), (X,))
    assert len(after.graph.find_nodes(op="call_function", target=CAST)) == 2
    assert_keeps(merge_casts, casts(torch.float16, torch.float32), (X,))
    assert_keeps(merge_casts, casts(torch.int64, torch.float32), (X,))


DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
)  # fmt: skip


@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_exact_casts_lose_nothing(source: torch.dtype) -> None:
    if source.is_floating_point or source.is_complex:
        values = torch.tensor([0.1, 3.0, 65504.0, 1e-7, 1e30, float("inf")]).to(source)
    elif source == torch.bool:
        values = torch.tensor([False, True])
    else:
        limits = torch.iinfo(source)
        values = torch.tensor([limits.min, limits.max, limits.max - 1, limits.max // 2, 0], dtype=source)
    assert is_exact(source, source)
    for target in DTYPES:
        if is_exact(source, target):
            assert torch.equal(values.to(target).to(source), values)


def test_transposes() -> None:
    def compute(x: torch.Tensor) -> Any:
        return x.permute(2, 0, 1).transpose(0, 2).permute(-1, 0, 1) * 1, x[0].t().t() * 2, x[0, 0].t().t() * 1

    after = assert_rewrites(merge_transposes, compute, (X,), gone=(aten.transpose.int,))
    # What is left over the identity is taken by remove_noops.
    assert len(after.graph.find_nodes(op="call_function", target=aten.permute.default)) == 3
    assert_keeps(merge_transposes, lambda x: (x.transpose(0, 1) + 1).transpose(0, 1), (X,))


@settings(max_examples=8, deadline=None)
@given(st.lists(st.permutations(range(3)), min_size=2, max_size=4))
def test_any_permutations(orders: list[list[int]]) -> None:
    def compute(x: torch.Tensor) -> torch.Tensor:
        for order in orders:
            x = x.permute(order)
        return x * 2

    after = assert_rewrites(merge_transposes, compute, (X,))
    assert len(after.graph.find_nodes(op="call_function", target=aten.permute.default)) == 1


def test_reshapes() -> None:
    after = assert_rewrites(merge_reshapes, lambda x: x.view(6, 4).reshape(-1).view(4, 6) * 2, (X,))
    assert len(after.graph.find_nodes(op="call_function", target=aten.view.default)) == 1
    # A view of a transposed tensor may be illegal, or mean another order.
    assert_keeps(merge_reshapes, lambda x: x[:, :2].view(2, 2, 2, 2).view(2, 2, 4) * 2, (X,))


def test_chains_that_lead_back_go_entirely() -> None:
    def compute(x: torch.Tensor) -> torch.Tensor:
        y = (x + 1).transpose(0, 2).permute(2, 1, 0).view(6, 4).view(2, 3, 4)
        return aten._to_copy(aten._to_copy(y, dtype=torch.float64), dtype=torch.float32) * 2

    class Everything:
        targets: frozenset[Any] = frozenset()

        def reject(self, call: Any) -> None:
            return None

    lowered = AtenLowering().lower(whole(compute, (X,)), Everything())
    assert targets(lowered) == [aten.add.Tensor, aten.mul.Tensor]
    torch.testing.assert_close(run(lowered, X)[0], compute(X))


def test_constants_are_computed_once() -> None:
    def compute(x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(3, 3).triu(1).unsqueeze(0) * -2
        return x + torch.eye(3, 4) + mask.sum() + torch.linspace(0, 1, 4)

    after = assert_rewrites(
        fold_constants, compute, (X,), gone=(aten.eye.default, aten.linspace.default, aten.triu.default, aten.sum.default)
    )
    assert [node.target for node in after.graph.find_nodes(op="call_function", target=aten.add.Tensor)] == [aten.add.Tensor] * 3


def test_filling_memory_is_no_constant_worth_keeping() -> None:
    assert_keeps(fold_constants, lambda x: x + torch.full((4,), 2.0).expand(3, 4) + torch.arange(4), (X,))


WEIGHT = torch.nn.Parameter(torch.ones(4))
ROWS = int(MAX_FOLDED_BYTES**0.5)
RULES: dict[str, tuple[Any, Any]] = {
    "random": (lambda x: x + torch.rand(4), aten.rand.default),
    "data": (lambda x: x * 2, aten.mul.Tensor),
    "size": (lambda x: x + torch.eye(ROWS)[0, 0], aten.eye.default),
    "dequantize": (
        lambda x: x + aten.fake_quantize_per_tensor_affine(torch.ones(4), 0.1, 0, -128, 127),
        aten.fake_quantize_per_tensor_affine.default,
    ),
    "effects": (lambda x: (aten._assert_async.msg(torch.ones([]), "no"), x)[1] + 0, aten._assert_async.msg),
}


@pytest.mark.parametrize("rule", RULES)
def test_rules_name_what_is_not_folded(rule: str) -> None:
    function, target = RULES[rule]
    graph = whole(function, (X,)).module.graph
    constants = {node for node in graph.nodes if node.op == "call_function" and not node.all_input_nodes}
    (node,) = graph.find_nodes(op="call_function", target=target)
    assert why_not_folded(node, constants) == rule
    assert_keeps(fold_constants, function, (X,))


def test_a_foreign_operator_is_not_folded() -> None:
    with torch.library._scoped_library("kiln_lowering_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        assert_keeps(fold_constants, lambda x: x + torch.ops.kiln_lowering_test.twice(torch.ones(4)), (X,))


def test_a_constant_result_is_a_new_tensor_in_every_call() -> None:
    assert_keeps(fold_constants, lambda x: (x + 1, torch.eye(3)), (X,))
    assert_keeps(fold_constants, lambda x: (x + 1, torch.eye(3)[0]), (X,))
