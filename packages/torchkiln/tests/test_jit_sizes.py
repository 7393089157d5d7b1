"""``torch.compile`` and sizes: what recompiles, which ranges engines get, and what happens outside of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import torchkiln
from torchkiln_testing import OpClass, assert_same

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)).reshape(-1) * x.shape[0]


def check(net: Any, compiled: Any, rows: int, bounds: tuple[int, int] | None = None) -> None:
    x = torch.randn(rows, 4)
    if bounds is not None:
        torch._dynamo.mark_dynamic(x, 0, min=bounds[0], max=bounds[1])
    with torch.no_grad():
        assert_same(net(x), compiled(x), OpClass.MATMUL)


def ranges(report: torchkiln.Report) -> list[tuple[int, int, int, bool]]:
    return [(size.min, size.opt, size.max, size.assumed) for size in report.sizes]


def test_the_second_size_is_dynamic_and_nothing_compiles_after_it(jit: Callable[..., Any], reports: list[torchkiln.Report]) -> None:
    net = Net().eval()
    compiled = jit(net)
    for rows in (3, 5, 7, 11, 64, 2, 13):
        check(net, compiled, rows)
    assert counters["stats"]["unique_graphs"] == len(reports) == 2
    assert ranges(reports[0]) == []
    # Dynamo takes 0 and 1 for cases of their own; 64 is the default of a size that nothing bounds, and reported as such.
    assert ranges(reports[1]) == [(2, 5, 64, True)]
    assert "64 is the default, since nothing bounds it" in str(reports[1])


@pytest.mark.parametrize(("dynamic", "graphs"), [(True, 1), (False, 4)])
def test_dynamic_says_what_is_compiled(jit: Callable[..., Any], reports: list[torchkiln.Report], dynamic: bool, graphs: int) -> None:
    net = Net().eval()
    compiled = jit(net, dynamic=dynamic)
    for rows in (3, 5, 7, 11, 5):
        check(net, compiled, rows)
    assert counters["stats"]["unique_graphs"] == len(reports) == graphs


def test_marked_bounds_are_the_range(jit: Callable[..., Any], reports: list[torchkiln.Report]) -> None:
    net = Net().eval()
    compiled = jit(net, {"out_of_profile": "error"})
    for rows in (3, 2, 9, 7):
        check(net, compiled, rows, (2, 9))
    assert [ranges(report) for report in reports] == [[(2, 3, 9, False)]]


def test_empty_and_single_rows_are_right(jit: Callable[..., Any], reports: list[torchkiln.Report]) -> None:
    net = Net().eval()
    compiled = jit(net)
    for rows in (3, 5, 1, 0, 7, 1, 0):
        check(net, compiled, rows)
    assert len(reports) <= 4


def test_outside_runs_in_pytorch_by_default(jit: Callable[..., Any], reports: list[torchkiln.Report], caplog: Any) -> None:
    net = Net().eval()
    compiled = jit(net, dynamic=True)
    for rows in (3, 65, 1000):
        check(net, compiled, rows)
    assert counters["stats"]["unique_graphs"] == len(reports) == 1
    [said] = [record.getMessage() for record in caplog.records if record.name == "torchkiln" and "PyTorch" in record.getMessage()]
    for words in ("argument x dimension 0", "expected 2 to 64, the default", "got 65", "mark_dynamic"):
        assert words in said
    assert "out_of_profile" not in said


def test_outside_may_be_an_error(jit: Callable[..., Any]) -> None:
    net = Net().eval()
    compiled = jit(net, {"out_of_profile": "error"}, dynamic=True)
    for rows in (3, 64):
        check(net, compiled, rows)
    with pytest.raises(torchkiln.ShapeOutOfProfile, match=r"argument x dimension 0: expected 2 to 64, .* got 65"):
        check(net, compiled, 65)


def test_outside_may_build_once_more(jit: Callable[..., Any], reports: list[torchkiln.Report]) -> None:
    net = Net().eval()
    compiled = jit(net, {"out_of_profile": "rebuild"}, dynamic=True)
    for rows in (3, 65, 100, 128, 64, 70):
        check(net, compiled, rows)
    assert counters["stats"]["unique_graphs"] == 1
    assert [ranges(report) for report in reports] == [[(2, 3, 64, True)], [(2, 65, 128, False)]]
    with torch.no_grad():
        net.linear.weight.mul_(2)
    for rows in (5, 99):
        check(net, compiled, rows)


def test_frozen_weights_are_not_mixed_with_newer_ones(jit: Callable[..., Any]) -> None:
    net = Net().eval()
    compiled = jit(net, {"out_of_profile": "rebuild", "weights": "frozen"}, dynamic=True)
    check(net, compiled, 3)
    with torch.no_grad():
        net.linear.weight.mul_(2)
    with pytest.raises(torchkiln.ShapeOutOfProfile, match="weights have changed"):
        check(net, compiled, 65)


def test_guards_of_the_program_are_respected(jit: Callable[..., Any], reports: list[torchkiln.Report]) -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] > 10 else x * 3

    compiled = jit(branch, dynamic=True)
    for rows in (3, 5, 11, 50, 10):
        check(branch, compiled, rows)
    assert [ranges(report)[0] for report in reports] == [(2, 3, 10, False), (11, 11, 88, True)]


def test_profiles_by_argument(jit: Callable[..., Any], reports: list[torchkiln.Report]) -> None:
    net = Net().eval()
    profiles = [torchkiln.Profile("few", {("x", 0): (2, 4, 8)}), torchkiln.Profile("many", {("x", 0): (9, 512, 1024)})]
    compiled = jit(net, {"profiles": profiles}, dynamic=True)
    for rows in (3, 8, 9, 1000):
        check(net, compiled, rows)
    assert [ranges(report) for report in reports] == [[(2, 4, 1024, False)]]


@pytest.mark.parametrize("limit", [2, 3])
def test_recompilations_end(jit: Callable[..., Any], reports: list[torchkiln.Report], limit: int) -> None:
    net = Net().eval()
    with torch._dynamo.config.patch(recompile_limit=limit):
        compiled = jit(net, dynamic=False)
        for rows in range(2, 9):
            check(net, compiled, rows)
    assert len(reports) == limit
