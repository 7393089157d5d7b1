"""What a model, or torch on its behalf, checks of sizes that data decides is checked in every call: no size is taken on trust."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.export import Dim

import torchkiln

T = torch.Tensor


def checks(x: T) -> T:
    chosen = x[x > 0]
    torch._check(chosen.shape[0] == x.shape[0])
    return chosen * 2


def views(x: T) -> T:
    return x[x > 0].view(x.shape[0]) * 3


def views_two_rows(x: T) -> T:
    return x[x > 0].view(2, -1).sum(0)


def adds(x: T) -> T:
    return x[x > 0] + x


def stacks(x: T) -> T:
    return torch.stack([x[x > 0], x])


def adds_two(x: T) -> T:
    return x[x > 0] + x[x < 9]


def expands_the_first(x: T) -> T:
    chosen = x[x > 0]
    return chosen[:1].expand_as(chosen)


def repeats_the_first(x: T) -> T:
    repeated = torch.repeat_interleave(x, x.to(torch.int64).abs() % 3)
    return repeated[:1].expand_as(repeated)


FUNCTIONS = (checks, views, views_two_rows, adds, stacks, adds_two, expands_the_first, repeats_the_first)
VALUES = ([1, 1, 1, 1], [1, -1, 2, 2], [1, -1, -1, -1], [1, -2, -3, 4], [-1, -1, -1, -1])


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_result_is_that_of_eager_or_none(function: Callable[[T], T], dynamic: bool) -> None:
    shapes = ({0: Dim("n", min=1, max=9)},) if dynamic else None
    compiled = torchkiln.compile(function, (torch.ones(4),), dynamic_shapes=shapes, engine="reference", min_block_size=1)
    for values in VALUES:
        x = torch.tensor(values, dtype=torch.float32)
        try:
            expected = function(x)
        except RuntimeError:
            expected = None
        try:
            got = compiled(x)
        except (RuntimeError, torchkiln.ShapeOutOfProfile):
            # torch's own program fails too where a size is not as it assumed.
            continue
        assert expected is not None
        torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_what_is_checked_and_holds_runs() -> None:
    compiled = torchkiln.compile(
        checks, (torch.ones(4),), dynamic_shapes=({0: Dim("n", min=2, max=9)},), engine="reference", min_block_size=1
    )
    for size in (2, 5, 9):
        torch.testing.assert_close(compiled(torch.ones(size)), torch.full((size,), 2.0))
