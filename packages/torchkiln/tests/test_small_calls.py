"""Sizes of 0 and 1 at which a model takes another branch than at all others: refused where that computes something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import Dim

import torchkiln
from torchkiln_core import ShapeOutOfProfile

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


def compiled_for(model: Callable[..., Any], low: int = 1, **options: Any) -> torchkiln.CompiledModule:
    return torchkiln.compile(model, (X,), dynamic_shapes=({0: Dim("n", min=low, max=8)},), engine="reference", **options)


def other_for_one(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[0] > 1 else x * 3


def same_for_one(x: torch.Tensor) -> torch.Tensor:
    return x.sum(0) if x.shape[0] > 1 else x.squeeze(0) * 1.0


def shorter_for_none(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, x]) if x.shape[0] else x.new_ones(1, 4)


def test_a_size_with_another_branch_is_refused() -> None:
    compiled = compiled_for(other_for_one)
    torch.testing.assert_close(compiled(X), X * 2)
    torch.testing.assert_close(compiled(X[:2]), X[:2] * 2)
    with pytest.raises(ShapeOutOfProfile, match="!= 1"):
        compiled(X[:1])


@pytest.mark.parametrize("how", ["torch", "rebuild"])
def test_such_a_size_can_run_all_the_same(how: str) -> None:
    compiled = compiled_for(other_for_one, out_of_profile=how)
    torch.testing.assert_close(compiled(X[:1]), X[:1] * 3)


def test_a_branch_that_computes_the_same_stays_in_the_range() -> None:
    compiled = compiled_for(same_for_one)
    for rows in (1, 2, 8):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), same_for_one(x))


def test_an_empty_tensor_is_tried_too() -> None:
    compiled = compiled_for(shorter_for_none, low=0)
    torch.testing.assert_close(compiled(X[:1]), shorter_for_none(X[:1]))
    with pytest.raises(ShapeOutOfProfile, match="!= 0"):
        compiled(X[:0])


def test_two_sizes_are_tried_together() -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sum() + y.sum() if x.shape[0] * y.shape[0] > 1 else x.sum() - y.sum()

    shapes = ({0: Dim("n", min=1, max=8)}, {0: Dim("m", min=1, max=8)})
    compiled = torchkiln.compile(model, (X, X.clone()), dynamic_shapes=shapes, engine="reference")
    for n, m in ((1, 2), (2, 1), (8, 8)):
        torch.testing.assert_close(compiled(X[:n].clone(), X[:m].clone()), model(X[:n], X[:m]))
    with pytest.raises(ShapeOutOfProfile, match="!= 1 or"):
        compiled(X[:1], X[1:2])


def test_a_size_that_the_model_refuses_is_no_difference() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 1:
            raise ValueError("no batch of one")
        return x + 1

    torch.testing.assert_close(compiled_for(model)(X), X + 1)


def test_the_trial_leaves_no_trace() -> None:
    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(4)
            self.drop = torch.nn.Dropout(0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.drop(self.norm(x.unsqueeze(-1).expand(-1, -1, 2)))

    model = Counts()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    example, state = X.clone(), torch.get_rng_state()
    compiled = torchkiln.compile(model, (X,), dynamic_shapes=({0: Dim("n", min=1, max=8)},), engine="reference")
    assert torch.equal(X, example)
    assert torch.equal(torch.get_rng_state(), state)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    # Draws of dropout are no difference.
    assert compiled(X[:1]).shape == (1, 4, 2)


def test_an_argument_that_a_branch_changes_is_compared() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 1:
            x.add_(1)
        return x.sum()

    with pytest.raises(ShapeOutOfProfile, match="!= 1"):
        compiled_for(model)(X[:1].clone())
