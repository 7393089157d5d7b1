"""A program without an engine runs as the user's own module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchkiln
from torchkiln.backend import CapturedGraph
from torchkiln_testing import assert_same


class Counted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.seen = 0

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> dict[str, torch.Tensor]:
        self.seen += 1
        self.calls += 1
        return {"y": torch.lgamma(self.linear(x)) * scale}


def test_a_program_without_engines_runs_as_the_module_itself() -> None:
    model, x = Counted(), torch.randn(2, 4)
    compiled = torchkiln.compile(model, (x,), {"scale": 2.0}, engine="reference")
    assert [segment.kind for segment in compiled.report.segments] == ["torch"]
    assert "the model itself runs" in str(compiled.report)
    seen, calls = model.seen, int(model.calls)
    result = compiled(x, scale=2.0)
    assert model.seen == seen + 1
    assert int(model.calls) == calls + 1
    assert not result["y"].requires_grad
    with torch.no_grad():
        assert_same(model(x, scale=3.0)["y"], compiled(x, scale=3.0)["y"])
    assert list(compiled.parameters()) == []
    assert list(compiled.state_dict()) == []


def test_a_program_with_an_engine_does_not() -> None:
    model, x = Counted(), torch.randn(2, 4)
    compiled = torchkiln.compile(model, (x,), engine="reference", min_block_size=1)
    seen, calls = model.seen, int(model.calls)
    compiled(x)
    assert model.seen == seen
    assert int(model.calls) == calls + 1


def test_changed_weights_are_seen() -> None:
    model, x = Counted(), torch.randn(2, 4)
    compiled = torchkiln.compile(model, (x,), engine="reference")
    with torch.no_grad():
        model.linear.weight.mul_(2)
        expected = model(x)["y"]
    assert_same(expected, compiled(x)["y"])
    compiled.refresh()
    assert_same(expected, compiled(x)["y"])


def test_functions_and_saved_programs(tmp_path: pytest.TempPathFactory) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.lgamma(x)

    x = torch.rand(3)
    compiled = torchkiln.compile(function, (x,), engine="reference")
    assert_same(function(x), compiled(x))
    torchkiln.save(compiled, tmp_path / "net.kiln")
    assert_same(function(x), torchkiln.load(tmp_path / "net.kiln")(x))


def test_an_exported_program_runs_as_its_graph() -> None:
    x = torch.rand(3, 4)
    exported = torch.export.export(torch.nn.Sequential(torch.nn.Linear(4, 4)), (x,))
    compiled = torchkiln.compile(exported, engine="reference", torch_executed_ops=["aten.linear"])
    with torch.no_grad():
        assert_same(exported.module()(x), compiled(x))


def compiled_just_in_time(
    model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[Callable[..., Any], list[torch.fx.GraphModule]]:
    """The module under torch.compile, and the captured graphs in the order in which they run as such."""
    ran: list[torch.fx.GraphModule] = []
    begin = CapturedGraph.__init__

    def watched(self: CapturedGraph, compiled: Callable[..., Any], own: Any) -> None:
        def run(*arguments: Any) -> Any:
            ran.append(own.__self__)
            return own(*arguments)

        begin(self, compiled, run)

    monkeypatch.setattr(CapturedGraph, "__init__", watched)
    torch._dynamo.reset()
    return torch.compile(model, backend="torchkiln", options={"engine": "reference", **options}), ran


@pytest.mark.parametrize("grad", [True, False])
def test_a_captured_graph_without_engines_runs_as_it_was_captured(monkeypatch: pytest.MonkeyPatch, grad: bool) -> None:
    model, same, x = Counted(), Counted(), torch.randn(2, 4)
    same.load_state_dict(model.state_dict())
    compiled, ran = compiled_just_in_time(model, monkeypatch)
    with torch.set_grad_enabled(grad):
        for _ in range(3):
            expected, result = same(x, scale=2.0)["y"], compiled(x, scale=2.0)["y"]
            assert_same(expected.detach(), result.detach())
            assert int(model.calls) == int(same.calls)
    assert result.requires_grad is grad
    if grad:
        result.sum().backward()
        expected.sum().backward()
        assert model.linear.weight.grad is not None
        assert_same(same.linear.weight.grad, model.linear.weight.grad)
    assert len(ran) == 3
    # In torch functions, not in operators that it was decomposed into.
    targets = [node.target for node in ran[0].graph.nodes if node.op == "call_function"]
    assert not any(isinstance(target, torch._ops.OpOverload) for target in targets)


def test_a_captured_graph_with_an_engine_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Counted(), torch.randn(2, 4)
    compiled, ran = compiled_just_in_time(model, monkeypatch, min_block_size=1)
    with torch.no_grad():
        for _ in range(2):
            assert_same(model(x)["y"], compiled(x)["y"])
    assert not ran


def test_changed_weights_are_seen_just_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Counted(), torch.randn(2, 4)
    compiled, ran = compiled_just_in_time(model, monkeypatch, weights="frozen")
    with torch.no_grad():
        compiled(x)
        model.linear.weight.mul_(2)
        assert_same(model(x)["y"], compiled(x)["y"])
    assert len(ran) == 2
