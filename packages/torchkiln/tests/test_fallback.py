"""A call that cannot be converted or built falls back alone, says why, and the result is still right."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import torchkiln
from torchkiln.compiled_module import CompiledModule
from torchkiln.fallback import compile_segments
from torchkiln.segment_compiler import CompiledSegment, SegmentCompiler
from torchkiln_converters import Support, converter
from torchkiln_core import BuildError, Network, PartitionError, Program, Segment, Value
from torchkiln_runtime import TensorRTBuilder, find_library
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
    return torchkiln.compile(Net(), (X,), **{"engine": "reference", "min_block_size": 1, "converters": [broken], **options})


def test_under_torch_compile_the_warning_is_at_the_line_that_calls() -> None:
    compiled = torch.compile(Net(), backend="torchkiln", options={"engine": "reference", "min_block_size": 1, "converters": [broken]})
    with pytest.warns(torchkiln.FallbackWarning, match="no such thing") as told:
        assert_same(Net()(X), compiled(X))
    assert told[0].filename == __file__


def test_only_the_guilty_call_falls_back() -> None:
    with pytest.warns(torchkiln.FallbackWarning, match="no such thing") as told:
        compiled = compile_with_broken_relu()
    assert told[0].filename == __file__
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


class Chain(torch.nn.Module):
    """Three engines with ``lgamma`` between them; the middle one holds ``relu``."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.lgamma(x.abs() + 1).exp()
        x = torch.lgamma(torch.relu(x * 2) + 3)
        return x.sin() * 4


def failing_on_relu(monkeypatch: pytest.MonkeyPatch, node: str | None) -> list[tuple[str, ...]]:
    """Lets TensorRT refuse every segment with ``relu``; collects the calls of every segment that is compiled."""
    compiled: list[tuple[str, ...]] = []
    compile_one = SegmentCompiler.compile

    def compile_or_fail(self: SegmentCompiler, segment: Segment, program: Program) -> CompiledSegment:
        compiled.append(segment.calls)
        if "aten.relu.default" in segment.calls:
            raise BuildError("no kernel for it", node=node)
        return compile_one(self, segment, program)

    monkeypatch.setattr(SegmentCompiler, "compile", compile_or_fail)
    return compiled


@pytest.mark.parametrize("node", ["relu", "relu/Activation", "relu/ElementWise_3"])
def test_a_segment_is_split_around_the_call_whose_layer_fails(monkeypatch: pytest.MonkeyPatch, node: str) -> None:
    compiled = failing_on_relu(monkeypatch, node)
    with pytest.warns(torchkiln.FallbackWarning, match=r"relu \(aten.relu.default\) of engine_2 runs in PyTorch: build: no kernel for it"):
        module = torchkiln.compile(Chain(), (X,), engine="reference", min_block_size=1)
    assert_same(Chain()(X), module(X))
    assert [item.node for item in module.report.rejections if item.rule == "build-failed"] == ["relu"]
    engines = [segment.calls for segment in module.report.segments if segment.kind == "engine"]
    assert ("aten.mul.Tensor",) in [calls[-1:] for calls in engines]
    assert all("aten.relu.default" not in calls for calls in engines)
    # One attempt with relu, and every other segment once.
    assert sorted(compiled) == sorted([*engines, ("aten.exp.default", "aten.mul.Tensor", "aten.relu.default", "aten.add.Tensor")])


def test_a_segment_whose_error_names_nothing_runs_in_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = failing_on_relu(monkeypatch, None)
    with pytest.warns(torchkiln.FallbackWarning, match=r"engine_2 \(4 calls\) runs in PyTorch: build: no kernel for it"):
        module = torchkiln.compile(Chain(), (X,), engine="reference", min_block_size=1)
    assert_same(Chain()(X), module(X))
    assert [segment.kind for segment in module.report.segments] == ["engine", "torch", "engine"]
    assert len(compiled) == 3


@pytest.mark.skipif(find_library() is None, reason="library: no TensorRT library is installed, so no plan can be built")
def test_plans_of_unchanged_segments_are_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    failing_on_relu(monkeypatch, "relu/Activation")
    builds: list[str] = []
    prepare = TensorRTBuilder.prepare

    def counted(self: TensorRTBuilder, network: Network) -> object:
        builds.append(network.outputs[0][0])
        return prepare(self, network)

    monkeypatch.setattr(TensorRTBuilder, "prepare", counted)
    with pytest.warns(torchkiln.FallbackWarning):
        module = torchkiln.compile(Chain(), (X,), engine="reference", targets=["sm_89"], min_block_size=1)
    engines = [segment for segment in module.report.segments if segment.kind == "engine"]
    assert len(engines) == 4
    assert len(builds) == len(set(builds)) == 4
    assert all(segment.plan_bytes for segment in engines)


def test_a_reused_segment_takes_the_name_of_its_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failing_on_relu(monkeypatch, "relu")
    with pytest.warns(torchkiln.FallbackWarning):
        module = torchkiln.compile(Chain(), (X,), engine="reference", min_block_size=1)
    torchkiln.save(module, tmp_path / "chain.kiln")
    assert_same(Chain()(X), torchkiln.load(tmp_path / "chain.kiln")(X))


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


@converter(torch.ops.aten.arange.default, Support(ignores=("end", "dtype")))
def broken_range(net: Network) -> Value:
    """``arange``, with a converter that fails."""
    raise KeyError("no range")


def test_a_cheap_call_that_segments_copy_takes_its_segment_along() -> None:
    class Numbered(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.arange(x.shape[0]).unsqueeze(1) + 1

    rows = torch.export.Dim("rows", min=2, max=8)
    with pytest.warns(torchkiln.FallbackWarning, match="no range"):
        compiled = torchkiln.compile(
            Numbered(), (X,), dynamic_shapes=({0: rows},), engine="reference", min_block_size=1, converters=[broken_range]
        )
    assert_same(Numbered()(X[:2]), compiled(X[:2]))


def test_a_division_that_moves_nothing_ends_with_the_error() -> None:
    partition = torchkiln.compile(Net(), (X,), engine="reference", min_block_size=1).parts[1].partition

    def fail(segment: Segment, program: Program) -> None:
        raise BuildError("always")

    with pytest.warns(torchkiln.FallbackWarning), pytest.raises(BuildError, match="always"):
        compile_segments(lambda refused: partition, fail, required=False)
