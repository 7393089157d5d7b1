"""A call that cannot be converted or built falls back alone, says why, and the result is still right."""

from __future__ import annotations

import pytest
import torch

import torchkiln
from torchkiln.capture import capture, export_model
from torchkiln.compiled_module import CompiledModule
from torchkiln.stages import Compiler
from torchkiln_converters import Support, converter, default_registry
from torchkiln_core import Network, Options, PartitionError, Value
from torchkiln_testing import assert_same


@converter(torch.ops.aten.relu.default, Support(dtypes=frozenset({torch.float32})))
def broken(net: Network, self: Value) -> Value:
    """``relu(Tensor self)``, with a converter that fails."""
    raise KeyError("no such thing")


class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * 2) + 1


X = torch.randn(3, 4)


def compile_with_broken_relu(**options: object) -> CompiledModule:
    net = Net()
    compiler = Compiler(
        Options.from_keywords({"engine": "reference", "min_block_size": 1, **options}), registry=default_registry().extend(broken)
    )
    captured = capture(export_model(net, (X,), {}, None), net)
    return CompiledModule(captured, compiler.build(compiler.lower(captured.program)), follow=False)


def test_only_the_guilty_call_falls_back() -> None:
    with pytest.warns(torchkiln.FallbackWarning, match="no such thing"):
        compiled = compile_with_broken_relu()
    assert_same(Net()(X), compiled(X))
    assert [(segment.kind, segment.calls) for segment in compiled.report.segments] == [
        ("engine", ("aten.mul.Tensor",)),
        ("torch", ("aten.relu.default",)),
        ("engine", ("aten.add.Tensor",)),
    ]
    [rejection] = compiled.report.rejections
    assert rejection.rule == "build-failed"
    assert "no such thing" in rejection.message
    assert rejection.where is not None
    assert "torch.relu(x * 2)" in rejection.where


def test_full_compilation_raises_instead() -> None:
    with pytest.raises(torchkiln.InternalError, match="no such thing"):
        compile_with_broken_relu(require_full_compilation=True)


def test_full_compilation_lists_every_rejection() -> None:
    def two_refusals(x: torch.Tensor) -> torch.Tensor:
        return torch.lgamma(x) + torch.digamma(x.abs() + 1)

    with pytest.raises(PartitionError) as caught:
        torchkiln.compile(two_refusals, (X,), engine="reference", require_full_compilation=True)
    assert "aten.lgamma.default" in str(caught.value)
    assert "aten.digamma.default" in str(caught.value)
    assert "test_fallback.py" in str(caught.value)
