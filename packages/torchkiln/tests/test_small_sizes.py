"""Slices and squeezes at sizes of 0 and 1, which tracing leaves out of account: equal to eager, or refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.fx.experimental.proxy_tensor import make_fx

import torchkiln
from torchkiln.small_sizes import small_size_guards
from torchkiln_core import DimRange
from torchkiln_core.size import evaluate, sizes_of

Cut = Callable[[torch.Tensor, int], torch.Tensor]


@pytest.mark.parametrize(
    ("cut", "refused"),
    [
        (lambda x, n: x[: -(n - 1)], {0, 1}),  # x[:-0] is empty
        (lambda x, n: x[-(n - 1) :], {0, 1}),  # x[-0:] is everything
        (lambda x, n: x[2:], {0, 1}),
        (lambda x, n: x[1:], {0}),
        (lambda x, n: x[:-1], {0}),
        (lambda x, n: x[::2], set()),
        (lambda x, n: x[: n - 1], {0}),
        (lambda x, n: x[:2], {0, 1}),
        (lambda x, n: x[:100], set()),
        (lambda x, n: x.squeeze(), {1}),
        (lambda x, n: x.unsqueeze(0).squeeze(1), {1}),
        (lambda x, n: x.unsqueeze(0).squeeze((0, 2)), set()),
    ],
    ids=["to 1 - n", "from 1 - n", "from 2", "from 1", "to -1", "every second", "to n - 1", "to 2", "to 100", "all", "one", "others"],
)
def test_guards_refuse_sizes_that_were_not_traced(cut: Cut, refused: set[int]) -> None:
    module = make_fx(lambda x: cut(x, x.shape[0]), tracing_mode="symbolic")(torch.ones(5, 2))
    [node] = module.graph.find_nodes(op="placeholder")
    extent, width = map(str, sizes_of(node.meta["val"].shape))
    dims = {extent: DimRange(extent, 0, 5, 8), width: DimRange(width, 2, 2, 2)}
    guards = small_size_guards(module, dims)
    [result] = [sizes_of(node.args[0].meta["val"].shape) for node in module.graph.find_nodes(op="output")]
    for rows in range(9):
        is_recorded = list(cut(torch.ones(rows, 2), rows).shape) == [evaluate(size, {extent: rows, width: 2}) for size in result]
        assert is_recorded == (rows not in refused)
        assert is_recorded == all(guard.holds({extent: rows, width: 2}) for guard in guards)


def test_sizes_that_divide_by_zero_ask_nothing() -> None:
    module = make_fx(lambda x, y: y.reshape(x.shape[0], -1)[:, 1:], tracing_mode="symbolic")(torch.ones(3), torch.ones(6))
    names = [str(sizes_of(node.meta["val"].shape)[0]) for node in module.graph.find_nodes(op="placeholder")]
    dims = {name: DimRange(name, 0, opt, 12) for name, opt in zip(names, (3, 6), strict=True)}
    few, many = names
    assert all(guard.holds({few: 3, many: 6}) for guard in small_size_guards(module, dims))
    assert not all(guard.holds({few: 1, many: 0}) for guard in small_size_guards(module, dims))


def test_a_size_of_one_is_refused_where_a_slice_means_something_else() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + 1)[: -(x.shape[0] - 1)] * 2

    model = Model()
    shapes = ({0: Dim("n", min=1, max=8)},)
    program = torchkiln.compile(model, (torch.ones(5, 2),), dynamic_shapes=shapes, engine="reference", min_block_size=1)
    for rows in (2, 8):
        assert torch.equal(program(torch.ones(rows, 2)), model(torch.ones(rows, 2)))
    with pytest.raises(torchkiln.ShapeOutOfProfile, match="as the model asked for while it was captured"):
        program(torch.ones(1, 2))
