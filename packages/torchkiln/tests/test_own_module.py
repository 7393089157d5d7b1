"""A program without an engine runs as the user's own module."""

from __future__ import annotations

import pytest
import torch

import torchkiln
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
