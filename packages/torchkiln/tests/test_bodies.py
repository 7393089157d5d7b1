"""Graphs of higher-order calls are programs of their own: values, weights, report, and what keeps them in PyTorch."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan

import torchkiln
from torchkiln_runtime import find_library
from torchkiln_testing import assert_same

ALL: dict[str, Any] = {"engine": "reference", "min_block_size": 1}
X = torch.linspace(-1.0, 2.0, 12).reshape(4, 3)


class Net(torch.nn.Module):
    """A function of a module with a layer, whose weights bodies close over, and a buffer that it may change."""

    count: torch.Tensor

    def __init__(self, function: Callable[[Net, torch.Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.layer = torch.nn.Linear(3, 3)
        self.register_buffer("count", torch.ones(3))

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def branching(net: Net, x: torch.Tensor) -> torch.Tensor:
    h = x.sin()
    return torch.cond(x.sum() > 0, lambda t: net.layer(t).tanh() + x.mean(), lambda t: t.exp() - net.count, (h,)) * 2


def nested(net: Net, x: torch.Tensor) -> torch.Tensor:
    def positive(t: torch.Tensor) -> torch.Tensor:
        return torch.cond(t.mean() > 1, lambda u: net.layer(u).exp(), lambda u: (u - 1).sin(), (t.cos() + t,)) * 3

    return torch.cond(x.sum() > 0, positive, lambda t: (t * 2).sigmoid(), (x,))


def looping(net: Net, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    start = (torch.zeros((), dtype=torch.int64), x.sin())
    count, last = torch.while_loop(lambda i, a: i < 3 + (a.sum() > 0), lambda i, a: (i + 1, net.layer(a).tanh()), start)
    return count, last + 1


def mapping(net: Net, x: torch.Tensor) -> torch.Tensor:
    return map_rows(lambda row, other: net.layer(row).tanh() + other, x.sin(), x[0].clone()).cos()


def scanning(net: Net, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    carry, rows = scan(lambda carry, row: (carry + net.layer(row), (carry * row).sin()), x[0].sin(), x.cos())
    return carry.tanh(), rows


def counting(net: Net, x: torch.Tensor) -> torch.Tensor:
    net.count.add_(x[0])
    result: torch.Tensor = torch.cond(x.sum() > 0, lambda t: (t + net.count).sin(), lambda t: (t - net.count).cos(), (x,))
    net.count.mul_(2)
    return result


def writing_to_an_argument(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[0] = net.count
    y = torch.cond(x.sum() > 0, lambda t: net.layer(t) * x, lambda t: t - x, (y,))
    y += 1
    return y


def returning_what_it_takes(net: Net, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cond(x.sum() > 0, lambda t: (t.clone(), t.sin() + 1), lambda t: (t + 1, t.clone()), (x,))


MODES = ("ahead of time", "just in time")
FUNCTIONS = [branching, nested, looping, mapping, scanning, counting, writing_to_an_argument, returning_what_it_takes]
BY_DEFAULT = {
    "ahead of time": {branching, nested, looping, mapping},
    "just in time": {nested, scanning, counting, writing_to_an_argument, returning_what_it_takes},
}
CASES = [
    pytest.param(mode, function, marks=() if function in BY_DEFAULT[mode] else pytest.mark.slow) for mode in MODES for function in FUNCTIONS
]
INPUTS = [X, -X, X * 3, X[:2].contiguous(), X, -X[1:].contiguous()]
NESTED_TWICE = "torch_1/true_graph_0/torch_1/true_graph_0/engine_0"


def compile_as(mode: str, net: Net, **options: Any) -> tuple[Callable[..., Any], list[torchkiln.Report]]:
    """The module compiled ahead of time or just in time for any number of rows, and where its reports arrive."""
    reports: list[torchkiln.Report] = []
    options = {**ALL, "on_report": reports.append, **options}
    if mode == "ahead of time":
        rows = torch.export.Dim("rows", min=2, max=9)
        return torchkiln.compile(net, (X,), dynamic_shapes=({0: rows},), **options), reports
    torch._dynamo.reset()
    return torch.compile(net, backend="torchkiln", dynamic=True, options=options), reports


@pytest.mark.parametrize(("mode", "function"), CASES)
def test_values_are_those_of_eager(mode: str, function: Callable[..., Any]) -> None:
    net, same = Net(function).eval(), Net(function).eval()
    compiled, reports = compile_as(mode, net)
    with torch.no_grad():
        for x in INPUTS:
            assert_same(same(x), compiled(x.clone()))
            assert_same(same.count, net.count)
    inner = [segment for segment in reports[0].segments if "/" in segment.name]
    assert any(segment.kind == "engine" for segment in inner)
    assert all(segment.layers > 0 for segment in inner if segment.kind == "engine")


@pytest.mark.parametrize("mode", MODES)
def test_bodies_follow_weights(mode: str) -> None:
    net = Net(nested).eval()
    compiled, _ = compile_as(mode, net, weights="follow")
    with torch.no_grad():
        for factor in (1.0, 0.5, 2.0):
            net.layer.weight.mul_(factor)
            for x in (X * 3, X, -X):
                assert_same(net(x), compiled(x))


def test_gradients_through_a_branch_are_those_of_eager() -> None:
    net, same = Net(branching), Net(branching)
    compiled, _ = compile_as("just in time", net)
    for x in (X, -X):
        net.zero_grad()
        same.zero_grad()
        result, expected = compiled(x), same(x)
        assert_same(expected.detach(), result.detach())
        if expected.requires_grad:
            result.sum().backward()
            expected.sum().backward()
            assert_same(same.layer.weight.grad, net.layer.weight.grad)


def test_frozen_bodies_are_refreshed() -> None:
    net = Net(branching).eval()
    compiled = torchkiln.compile(net, (X,), **ALL)
    with torch.no_grad():
        net.layer.bias.add_(1)
        net.count.add_(1)
    compiled.refresh()
    for x in (X, -X):
        assert_same(net(x).detach(), compiled(x))


def test_the_report_names_bodies_by_their_path() -> None:
    report = torchkiln.explain(Net(nested).eval(), (X,), min_block_size=1)
    names = [segment.name for segment in report.segments]
    assert names[:2] == ["engine_0", "torch_1"]
    assert NESTED_TWICE in names
    assert names.index(NESTED_TWICE) < names.index("torch_1/false_graph_0/engine_0")
    found = next(segment for segment in report.segments if segment.name == NESTED_TWICE)
    assert found.calls == ("aten.linear.default", "aten.exp.default")
    assert [(item.node, item.rule) for item in report.rejections] == [
        ("cond", "no-converter"),
        ("torch_1/true_graph_0/cond", "no-converter"),
    ]
    held = {name for segment in report.segments for name in segment.weights}
    assert held == {"p_layer_weight", "p_layer_bias"}
    assert report.shares.weights == 1.0
    details = {call.name: call for segment in report.segments for call in segment.details}
    assert details["torch_1/false_graph_0/mul"].reads == ("x",)
    assert '"torch_1/false_graph_0/engine_0"' in report.to_dot()


def test_bodies_that_do_not_pay_stay_as_they_are() -> None:
    compiled = torchkiln.compile(Net(branching).eval(), (X,), engine="reference")
    assert compiled.parts[1].bodies == ()
    rules = {item.node: item.rule for item in compiled.report.rejections}
    assert rules["torch_1/true_graph_0/linear"] == "min-block-size"
    assert_same(Net(branching).eval()(X).detach(), compiled(X))


def test_a_small_body_pays_only_if_it_saves_more_than_its_border() -> None:
    report = torchkiln.explain(Net(branching).eval(), (X,), min_block_size=1, border_cost="on")
    assert {item.rule for item in report.rejections if item.node.startswith("torch_1/")} == {"border-cost"}


def test_a_program_with_engines_in_bodies_only_runs_as_compiled() -> None:
    def only_cond(net: Net, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(torch.lgamma(x).sum() > 0, lambda t: net.layer(t).tanh(), lambda t: t.exp() + 1, (x,))

    compiled = torchkiln.compile(Net(only_cond).eval(), (X,), **ALL, torch_executed_ops=["aten.sum", "aten.gt"])
    assert [segment.kind for segment in compiled.report.segments if "/" not in segment.name] == ["torch", "torch"]
    assert len(compiled.parts[1].bodies) == 2
    for x in (X, X.abs() / 100):
        assert_same(Net(only_cond).eval()(x).detach(), compiled(x))


@pytest.mark.parametrize("steering", [{"torch_executed_ops": ["higher_order.cond"]}, {"node_overrides": {"cond": "torch"}}])
def test_a_call_that_the_user_keeps_keeps_its_bodies(steering: dict[str, Any]) -> None:
    report = torchkiln.explain(Net(branching).eval(), (X,), min_block_size=1, **steering)
    assert not [segment.name for segment in report.segments if "/" in segment.name]


def test_operators_and_modules_are_kept_in_bodies_too() -> None:
    net = Net(branching).eval()
    report = torchkiln.explain(net, (X,), min_block_size=1, torch_executed_ops=["aten.exp"])
    assert ("torch_1/false_graph_0/exp", "torch-executed-op") in [(item.node, item.rule) for item in report.rejections]
    # Exported graphs of higher-order calls do not tell which module their calls come from; captured ones do.
    compiled, reports = compile_as("just in time", net, torch_executed_modules=[torch.nn.Linear])
    assert_same(net(X).detach(), compiled(X).detach())
    kept = [item.target for item in reports[0].rejections if item.rule == "torch-executed-module"]
    assert kept
    assert set(kept) <= {"aten.t.default", "aten.addmm.default", "aten.linear.default"}
    with pytest.raises(ValueError, match="no module that has a call matches"):
        torchkiln.explain(net, (X,), min_block_size=1, torch_executed_modules=[torch.nn.Conv1d])


def test_random_numbers_in_a_body_are_those_of_eager() -> None:
    def random(net: Net, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda t: net.layer(t) + torch.rand_like(t) * torch.rand_like(t), lambda t: t.sin(), (x,))

    net = Net(random).eval()
    compiled = torchkiln.compile(net, (X,), **ALL)
    assert compiled.parts[1].bodies
    torch.manual_seed(3)
    expected = net(X).detach()
    torch.manual_seed(3)
    assert_same(expected, compiled(X))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="inductor: no C++ compiler on this machine")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:torch")
def test_segments_with_bodies_run_call_by_call_beside_inductor() -> None:
    net = Net(looping).eval()
    compiled = torchkiln.compile(net, (X,), **ALL, torch_segments="inductor", torch_executed_ops=["aten.sin"])
    with torch.no_grad():
        assert_same(net(X), compiled(X))


def test_numbers_of_bodies_go_to_a_function_but_do_not_overwrite_a_file(tmp_path: Path) -> None:
    path, tables = tmp_path / "numbers.txt", []
    torchkiln.explain(Net(branching).eval(), (X,), min_block_size=1, partition_report=str(path))
    torchkiln.explain(Net(branching).eval(), (X,), min_block_size=1, partition_report=tables.append)
    assert path.read_text() == tables[0] + "\n"
    assert len(tables) == 3


def test_saving_names_the_operator(tmp_path: Path) -> None:
    compiled = torchkiln.compile(Net(branching).eval(), (X,), **ALL)
    with pytest.raises(torchkiln.PlanError, match="higher-order operator cond"):
        torchkiln.save(compiled, tmp_path / "cond.kiln")
    assert not list(tmp_path.iterdir())


def test_a_body_that_cannot_be_lowered_stays_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchkiln_core import LoweringError, Program, SupportOracle
    from torchkiln_lowering import AtenLowering

    lower = AtenLowering.lower

    def fail_on_exp(self: AtenLowering, program: Program, oracle: SupportOracle) -> Program:
        if any(node.target is torch.ops.aten.exp.default for node in program.module.graph.nodes):
            raise LoweringError("no way to lower exp")
        return lower(self, program, oracle)

    monkeypatch.setattr(AtenLowering, "lower", fail_on_exp)
    with pytest.warns(torchkiln.FallbackWarning, match="torch_1/false_graph_0 runs in PyTorch"):
        compiled = torchkiln.compile(Net(branching).eval(), (X,), **ALL)
    [refused] = [item for item in compiled.report.rejections if item.rule == "body"]
    assert (refused.node, refused.target) == ("cond", "cond")
    assert "false_graph_0" in refused.message
    assert "no way to lower exp" in refused.message
    for x in (X, -X):
        assert_same(Net(branching).eval()(x).detach(), compiled(x))


def test_operators_that_trace_their_graphs_keep_them() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    def attending(net: Net, x: torch.Tensor) -> torch.Tensor:
        query = net.layer(x).reshape(1, 1, 4, 3)
        return flex_attention(query, query.sin(), query.cos(), score_mod=lambda score, b, h, q, kv: score + q - kv).exp()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torchkiln.compile(Net(attending).eval(), (X,), **ALL)
        with torch.no_grad():
            expected = Net(attending).eval()(X)
    assert "body" in {item.rule for item in compiled.report.rejections}
    assert_same(expected, compiled(X))


@pytest.mark.skipif(find_library() is None, reason="library: no TensorRT library is installed, so no plan can be built")
def test_plans_are_built_for_bodies() -> None:
    compiled = torchkiln.compile(Net(branching).eval(), (X,), **ALL, targets=["sm_89"])
    inner = [segment for segment in compiled.report.segments if "/" in segment.name]
    assert len(inner) == 2
    assert all(segment.plan_bytes for segment in inner)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_values_on_a_gpu(function: Callable[..., Any], mode: str) -> None:
    net, same = Net(function).eval().cuda(), Net(function).eval().cuda()
    options: dict[str, Any] = {"engine": "tensorrt", "min_block_size": 1}
    torch._dynamo.reset()
    if mode == "ahead of time":
        compiled: Callable[..., Any] = torchkiln.compile(net, (X.cuda(),), **options)
    else:
        compiled = torch.compile(net, backend="torchkiln", options=options)
    with torch.no_grad():
        for x in (X, -X, X * 3, X, -X):
            torch.testing.assert_close(compiled(x.cuda()), same(x.cuda()), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(net.count, same.count)
