"""The standard passes: what they remove, and what outsiders could notice and they therefore keep."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lowering_programs import Oracle, aten, capture, run, targets, whole
from torch.export import Dim

from torchkiln_lowering import AtenLowering


class _All:
    targets: frozenset[Any] = frozenset()

    def reject(self, call: Any) -> None:
        return None


def lowered(function: Any, *inputs: Any, dynamic: Any = None, take: Any = whole) -> Any:
    return AtenLowering().lower(take(function, inputs, dynamic), _All())


def test_noops_inside_go() -> None:
    def compute(x: torch.Tensor) -> torch.Tensor:
        y = aten._to_copy(aten.alias(x + 1), dtype=torch.float32).detach().clone()
        y = aten.lift_fresh_copy(y.expand(2, 3).view(2, 3)[:])
        return y.permute(0, 1) * 2

    assert targets(lowered(compute, torch.randn(2, 3))) == [aten.add.Tensor, aten.mul.Tensor]


def test_changing_views_and_casts_stay() -> None:
    def compute(x: torch.Tensor) -> Any:
        return (x + 1).t() * 2, (x * 1).half() * 2, (x + 2).expand(2, 2, 2) * 2, (x + 3)[::2] * 1

    program = lowered(compute, torch.randn(2, 2))
    x = torch.randn(2, 2)
    for got, expected in zip(run(program, x), compute(x), strict=True):
        torch.testing.assert_close(got, expected)
    assert aten.t.default in targets(program)
    assert aten.expand.default in targets(program)


def test_identity_of_sliced_single_row() -> None:
    program = lowered(lambda x: (x + 1)[::2] * 2, torch.randn(1, 3))
    x = torch.randn(1, 3)
    torch.testing.assert_close(run(program, x)[0], (x + 1)[::2] * 2)


def test_copy_of_an_input_stays() -> None:
    program = lowered(lambda x: (x.clone(), x.clone().view(-1)), torch.randn(2, 3))
    x = torch.randn(2, 3)
    for value in run(program, x):
        assert value.data_ptr() != x.data_ptr()


def test_two_results_stay_two_tensors() -> None:
    def compute(x: torch.Tensor) -> Any:
        y = x + 1
        return y, y.clone(), x + 1

    values = run(lowered(compute, torch.randn(3)), torch.randn(3))
    assert len({value.data_ptr() for value in values}) == 3


def test_copy_of_a_result_that_nobody_else_returns_goes() -> None:
    assert targets(lowered(lambda x: (x + 1).clone(), torch.randn(3))) == [aten.add.Tensor]


def test_view_of_an_input_stays_a_tensor_of_its_own() -> None:
    x = torch.randn(3)
    (value,) = run(lowered(aten.alias, x), x)
    assert value is not x
    assert value.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("dropout", [F.dropout, F.alpha_dropout, F.feature_alpha_dropout], ids=lambda function: function.__name__)
def test_dropout_in_inference_goes(dropout: Any) -> None:
    assert targets(lowered(lambda x: dropout(x + 1, 0.5, training=False) * 2, torch.randn(3))) == [aten.add.Tensor, aten.mul.Tensor]


def test_native_dropout() -> None:
    def compute(x: torch.Tensor) -> Any:
        return torch.native_dropout(x, 0.5, False)[0]

    x = torch.randn(3)
    program = lowered(compute, x)
    assert targets(program) == [aten.clone.default]
    assert run(program, x)[0].data_ptr() != x.data_ptr()
    masked = lowered(lambda x: torch.native_dropout(x, 0.5, False), x)
    assert aten.native_dropout.default in targets(masked)


def test_active_dropout_stays() -> None:
    assert aten.dropout.default in targets(lowered(lambda x: F.dropout(x, 0.5, training=True), torch.randn(3)))


def test_equal_calls_are_shared() -> None:
    def compute(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x + 1) * torch.exp(x + 1) - torch.exp(x + 1.0)

    got = targets(lowered(compute, torch.randn(3)))
    assert got.count(aten.exp.default) == 2
    x = torch.randn(3)
    torch.testing.assert_close(run(lowered(compute, x), x)[0], compute(x))


def test_calls_whose_sizes_depend_on_data_are_not_shared() -> None:
    lowered = AtenLowering().lower(capture(lambda x: (x[x > 0] * 2, x[x > 0] + 1), (torch.randn(4),)), Oracle())
    assert targets(lowered).count(aten.index.Tensor) == 2


def test_random_calls_are_not_shared() -> None:
    program = lowered(lambda x: torch.rand_like(x) - torch.rand_like(x), torch.randn(3))
    assert targets(program).count(aten.rand_like.default) == 2


def test_metadata_checks_go_and_data_checks_stay() -> None:
    def compute(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async(x.sum() > 0, "positive")
        return x.to(torch.float16) + 1

    program = lowered(compute, torch.rand(3), take=capture)
    assert aten._assert_tensor_metadata.default not in targets(program)
    assert aten._assert_async.msg in targets(program)


def test_proven_size_checks_go() -> None:
    def compute(x: torch.Tensor) -> torch.Tensor:
        torch._check(x.shape[0] > 1)
        return x * 2

    program = lowered(compute, torch.randn(4), dynamic=(({0: Dim("n", min=2, max=8)},),), take=capture)
    assert aten._assert_scalar.default not in targets(program)


def test_size_checks_of_data_stay() -> None:
    def compute(x: torch.Tensor) -> torch.Tensor:
        n = x.sum().item()
        torch._check(n >= 2)
        torch._check(n < 9)
        return torch.ones(n)

    program = lowered(compute, torch.ones(4, dtype=torch.int64), take=capture)
    assert aten._assert_scalar.default in targets(program)
    with pytest.raises(RuntimeError):
        run(program, torch.zeros(4, dtype=torch.int64))
