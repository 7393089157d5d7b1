"""A ``torch.cond`` whose branches can be converted is a layer of an engine; any other stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import torchkiln
from torchkiln_runtime import find_library
from torchkiln_testing import assert_same

BUILT: dict[str, Any] = {"targets": ["sm_89"]} if find_library() is not None else {}
"""Besides running on the reference engine, plans are built, where there is a library."""
ALL: dict[str, Any] = {"engine": "reference", "min_block_size": 1, **BUILT}
X = torch.linspace(-1.0, 2.0, 12).reshape(4, 3)
INPUTS = [X, -X, X * 3, X[:2].contiguous(), -X[1:].contiguous()]


class Net(torch.nn.Module):
    """A function of a module with layers, whose weights branches close over, and a buffer."""

    count: torch.Tensor

    def __init__(self, function: Callable[[Net, torch.Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.layer = torch.nn.Linear(3, 3)
        self.conv = torch.nn.Conv1d(3, 3, 1)
        self.register_buffer("count", torch.ones(3))

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def closing_over_weights(net: Net, x: torch.Tensor) -> torch.Tensor:
    h = x.sin()
    return torch.cond(x.sum() > 0, lambda t: net.layer(t).tanh() + x.mean(), lambda t: t.exp() - net.layer(net.count), (h,)) * 2


def nested(net: Net, x: torch.Tensor) -> torch.Tensor:
    def positive(t: torch.Tensor) -> torch.Tensor:
        return torch.cond(t.mean() > 1, lambda u: net.layer(u).exp(), lambda u: (u - 1).sin(), (t.cos() + t,)) * 3

    return torch.cond(x.sum() > 0, positive, lambda t: (t * 2).sigmoid(), (x,))


def returning_what_it_takes(net: Net, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.cond(x.sum() > 0, lambda t: (t.clone(), t.sin(), t.sin()), lambda t: (t + 1, t.clone(), t.clone()), (x,))


def returning_weights(net: Net, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cond(
        x.sum() > 0, lambda t: (net.count.clone(), net.layer(t).sum(0)), lambda t: (net.layer(t).sum(0), net.layer.bias.clone()), (x,)
    )


def of_several_dtypes(net: Net, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    numbers = (x * 4).to(torch.int64)
    yes = lambda t, n: (t > 0, n + 2**40, t.half())  # noqa: E731
    no = lambda t, n: (t < 0, n * 3, (t * 2).half())  # noqa: E731
    return torch.cond((x.sum() > 0).reshape(1), yes, no, (x, numbers))


def by_size(net: Net, x: torch.Tensor) -> torch.Tensor:
    rows = x.shape[0]
    yes = lambda t: t.reshape(rows * 3).cumsum(0) + rows  # noqa: E731
    no = lambda t: torch.arange(rows * 3, dtype=torch.float32) + t.new_ones(rows * 3)  # noqa: E731
    return torch.cond(x.mean() > 0, yes, no, (x,)).reshape(rows, 3)


def of_many_layers(net: Net, x: torch.Tensor) -> torch.Tensor:
    def yes(t: torch.Tensor) -> torch.Tensor:
        normal = functional.layer_norm(t, (3,), net.count)
        attended = functional.scaled_dot_product_attention(normal[None, None], normal[None, None], t[None, None])[0, 0]
        return functional.gelu(attended) + functional.max_pool1d(t[None], 3, 1, 1)[0] + t.sort(1).values.cumsum(1)

    def no(t: torch.Tensor) -> torch.Tensor:
        picked = torch.cat([t[:, :1], t[:, 1:].flip(1)], 1).gather(1, t.argsort(1))
        pooled = functional.avg_pool1d(t[None], 3, 1, 1)[0]
        return torch.where(picked > 0, picked.softmax(1), pooled) - t.amax(1, keepdim=True) * t.var(1)[:, None]

    return torch.cond(x.sum() > 0, yes, no, (x.sin(),))


def convolving(net: Net, x: torch.Tensor) -> torch.Tensor:
    rows = x.t()[None].contiguous()
    return torch.cond(rows.sum() > 0, net.conv, lambda t: t * 2, (rows,))


def one_after_another(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = torch.cond(x.sum() > 0, net.layer, lambda t: t + net.count, (x,))
    z, _ = torch.cond(y.sum() > 0, lambda t: (t * 2, t.sin()), lambda t: (net.layer(t), t.cos()), (y,))
    return z + y


def writing_to_an_argument(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[0] = net.count
    y = torch.cond(x.sum() > 0, lambda t: net.layer(t) * x, lambda t: t - x, (y,))
    y += 1
    return y


FUNCTIONS = [
    closing_over_weights,
    nested,
    returning_what_it_takes,
    returning_weights,
    of_several_dtypes,
    by_size,
    of_many_layers,
    one_after_another,
    writing_to_an_argument,
]
JUST_IN_TIME = {closing_over_weights, by_size, returning_what_it_takes}
MODES = ("static", "dynamic", "just in time")
CASES = [
    pytest.param(function, mode, marks=pytest.mark.slow if mode == "just in time" and function not in JUST_IN_TIME else ())
    for function in FUNCTIONS
    for mode in MODES
    if function is not nested or mode == "static"
]


def compile_as(mode: str, net: Net, **options: Any) -> tuple[Callable[..., Any], list[torchkiln.Report]]:
    """The module compiled for the rows of X or for any number of rows, and where its reports arrive."""
    reports: list[torchkiln.Report] = []
    options = {**ALL, "on_report": reports.append, **options}
    if mode == "just in time":
        torch._dynamo.reset()
        return torch.compile(net, backend="torchkiln", dynamic=True, options=options), reports
    rows = torch.export.Dim("rows", min=2, max=9)
    device = net.count.device
    shapes = ({0: rows},) if mode == "dynamic" else None
    return torchkiln.compile(net, (X.to(device),), dynamic_shapes=shapes, **options), reports


@pytest.mark.parametrize(("function", "mode"), CASES)
def test_a_conditional_is_a_layer(function: Callable[..., Any], mode: str) -> None:
    net, same = Net(function).eval(), Net(function).eval()
    compiled, reports = compile_as(mode, net)
    with torch.no_grad():
        for x in INPUTS if mode != "static" else [x for x in INPUTS if len(x) == len(X)]:
            assert_same(same(x), compiled(x.clone()))
    [segment] = reports[0].segments
    assert segment.kind == "engine"
    assert "cond" in segment.calls
    assert reports[0].rejections == ()
    assert bool(segment.plan_bytes) == bool(BUILT)


def test_convolutions_are_left_in_the_branches() -> None:
    net = Net(convolving).eval()
    compiled, reports = compile_as("static", net)
    assert_same(net(X), compiled(X))
    assert "requires graphs without convolutions" in str(reports[0].rejections[0].message)


@pytest.mark.gpu
@pytest.mark.parametrize(("function", "mode"), CASES)
def test_a_conditional_on_a_gpu(function: Callable[..., Any], mode: str) -> None:
    if function is by_size:
        pytest.skip("by_size: makes a tensor on the CPU")
    net, same = Net(function).eval().cuda(), Net(function).eval().cuda()
    compiled, reports = compile_as(mode, net, engine="tensorrt", targets=["current"])
    with torch.no_grad():
        for x in INPUTS if mode != "static" else [x for x in INPUTS if len(x) == len(X)]:
            torch.testing.assert_close(compiled(x.cuda()), same(x.cuda()), rtol=1e-3, atol=1e-4)
    assert [segment.kind for segment in reports[0].segments] == ["engine"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_dtypes(dtype: torch.dtype) -> None:
    net = Net(lambda net, x: closing_over_weights(net, x.to(dtype))).eval().to(dtype)
    compiled, reports = compile_as("dynamic", net)
    assert [segment.kind for segment in reports[0].segments] == ["engine"]
    with torch.no_grad():
        for x in (X, -X):
            torch.testing.assert_close(compiled(x), net(x), rtol=2e-2, atol=2e-2)


def test_weights_are_followed() -> None:
    net = Net(nested).eval()
    compiled, _ = compile_as("static", net, weights="follow", targets=("current",))
    with torch.no_grad():
        for factor in (1.0, 0.5, 2.0):
            net.layer.weight.mul_(factor)
            for x in (X * 3, X, -X):
                assert_same(net(x), compiled(x))


def test_a_conditional_is_saved(tmp_path: Path) -> None:
    net = Net(one_after_another).eval()
    compiled, _ = compile_as("dynamic", net)
    torchkiln.save(compiled, tmp_path / "cond.kiln")
    loaded = torchkiln.load(tmp_path / "cond.kiln", engine="reference")
    with torch.no_grad():
        for x in INPUTS:
            assert_same(net(x), loaded(x))


def lgamma(net: Net, x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda t: torch.polygamma(3, net.layer(t)).tanh(), lambda t: t.exp() + net.count, (x,))


def random(net: Net, x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda t: net.layer(t) * torch.rand_like(t), lambda t: t.sin() + 1, (x,)).cos()


def double(net: Net, x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t * 2, (x.double(),)).float().cos()


STAYING = [
    (lgamma, "no-converter", "true_graph_0: aten.polygamma.default (polygamma): no converter"),
    (random, "effect", "draws random numbers"),
    (double, "dtype", "float64"),
]


@pytest.mark.parametrize(("function", "rule", "message"), STAYING)
def test_another_call_stays_as_it_is(function: Callable[..., Any], rule: str, message: str) -> None:
    net = Net(function).eval()
    compiled, reports = compile_as("static", net)
    [rejection] = [item for item in reports[0].rejections if item.node == "cond"]
    assert rejection.rule == rule
    assert message in rejection.message
    segments = {segment.name: segment for segment in reports[0].segments}
    assert next(segment for segment in segments.values() if "cond" in segment.calls).kind == "torch"
    if function is not double:
        assert any("/false_graph_0/engine" in name for name in segments)
    with torch.no_grad():
        for x in (X, -X):
            torch.manual_seed(1)
            expected = net(x)
            torch.manual_seed(1)
            assert_same(expected, compiled(x))


def test_of_nested_calls_of_dynamic_sizes_the_inner_one_is_a_layer() -> None:
    net = Net(nested).eval()
    compiled, reports = compile_as("dynamic", net)
    assert [(item.node, item.rule) for item in reports[0].rejections] == [("cond", "static")]
    [inner] = [segment for segment in reports[0].segments if "cond" in segment.calls and segment.kind == "engine"]
    assert "/true_graph_0/" in inner.name
    with torch.no_grad():
        for x in INPUTS:
            assert_same(net(x), compiled(x))


def test_a_part_that_the_user_keeps_keeps_the_call_but_not_the_rest_of_it() -> None:
    report = torchkiln.explain(Net(closing_over_weights).eval(), (X,), min_block_size=1, torch_executed_ops=["aten.exp"])
    rules = {item.node: item.rule for item in report.rejections}
    assert rules == {"cond": "body", "torch_1/false_graph_0/exp": "torch-executed-op"}
    assert any(segment.name == "torch_1/true_graph_0/engine_0" for segment in report.segments)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.skipif(find_library() is None, reason="library: no TensorRT library is installed, so no plan can be built")
def test_a_branch_that_cannot_be_built_leaves_its_call_in_pytorch(monkeypatch: pytest.MonkeyPatch, *, named: bool) -> None:
    from torchkiln_core import BuildError, Network, Plan
    from torchkiln_runtime import CachedBuilder

    build = CachedBuilder.build

    def refuse(self: CachedBuilder, network: Network) -> Plan:
        inner = [step.name for step in network.all_steps() if step.name.startswith("cond/then/")]
        if inner:
            raise BuildError("no kernel", node=inner[0] if named else None)
        return build(self, network)

    monkeypatch.setattr(CachedBuilder, "build", refuse)
    net = Net(closing_over_weights).eval()
    with pytest.warns(torchkiln.FallbackWarning, match=r"cond \(cond\) of engine_0 runs in PyTorch: .*no kernel"):
        compiled, reports = compile_as("static", net)
    assert [item.node for item in reports[0].rejections] == ["cond"]
    assert any("/true_graph_0/engine" in segment.name for segment in reports[0].segments)
    with torch.no_grad():
        for x in (X, -X):
            assert_same(net(x), compiled(x))
