"""Sizes that PyTorch refuses for want of a proof are served; those that a branch of the model excludes stay refused."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch._dynamo.exc import UserError, UserErrorType
from torch.export import Dim

import torchkiln
from torchkiln.size_questions import export_asking_less
from torchkiln_testing import assert_same

SIZES = ({0: Dim("n", min=1, max=9)},)


def compares_strides(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    return x + 1 if torch.sym_min(8 * n, 32 * n) < 64 * n else x - 1


def cuts_off(x: torch.Tensor) -> torch.Tensor:
    return 2 * x[:4] if x.shape[0] > 4 else x


def rounds_up(x: torch.Tensor) -> torch.Tensor:
    # torch puts this question off, and makes no call of the graph of it.
    return x + 1 if math.ceil(x.shape[0] / 2) > 1 else x * 3


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def test_a_question_with_one_answer_at_all_sizes_refuses_none():
    compiled = torchkiln.compile(compares_strides, (torch.rand(5),), dynamic_shapes=SIZES, engine="reference", min_block_size=1)
    for size in (1, 2, 7, 9):
        x = torch.rand(size)
        assert_same(compares_strides(x), compiled(x))


class Adds(torch.nn.Module):
    def forward(self, x, y):
        return x + y


def export_after_a_refusal(shapes):
    """An export of a sum of which torch asks something at first."""
    export = functools.partial(torch.export.export, Adds(), (torch.rand(5), torch.rand(5)), dynamic_shapes=shapes, strict=False)

    def refusing(**options):
        if not options:
            raise UserError(UserErrorType.CONSTRAINT_VIOLATION, "asked too much")
        return export(**options)

    return export_asking_less(refusing)


def test_sizes_that_are_declared_to_be_one_are_one():
    exported = export_after_a_refusal(SIZES * 2)
    x, y = torch.rand(7), torch.rand(7)
    assert_same(x + y, exported.module()(x, y))


def test_sizes_that_are_declared_apart_are_not_taken_for_one():
    with pytest.raises(UserError, match="asked too much"):
        export_after_a_refusal((*SIZES, {0: Dim("m", min=1, max=9)}))


@pytest.mark.parametrize("function", [cuts_off, rounds_up])
def test_a_question_with_two_answers_is_refused_as_before(function):
    export = functools.partial(torch.export.export, Model(function), (torch.rand(5),), dynamic_shapes=SIZES, strict=False)
    with pytest.raises(UserError) as theirs:
        export()
    with pytest.raises(UserError) as ours:
        export_asking_less(export)
    assert str(ours.value) == str(theirs.value)


def test_another_failure_of_the_second_attempt_does_not_hide_the_first():
    def export(**options):
        if options:
            raise RuntimeError("the second attempt")
        return torch.export.export(Model(cuts_off), (torch.rand(5),), dynamic_shapes=SIZES, strict=False)

    with pytest.raises(UserError, match="Constraints violated"):
        export_asking_less(export)
