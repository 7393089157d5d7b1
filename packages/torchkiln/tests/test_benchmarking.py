"""``benchmark``: segments that PyTorch runs faster move there, with the measured times as the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import torchkiln
from torchkiln import backends, benchmarking, stages
from torchkiln.benchmarking import SegmentBenchmark, example_inputs
from torchkiln_core import DimRange, Network

OPTIONS: dict[str, Any] = {"engine": "reference", "min_block_size": 1}
X = torch.randn(3, 4)


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    backends.benchmark = False
    backends.warn_once.cache_clear()


def two(x: torch.Tensor) -> torch.Tensor:
    return torch.sinh(torch.lgamma(torch.relu(x) + 1)) * 2


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[int]]]:
    """Measures although the reference engine runs segments; the times are given, in PyTorch and in an engine, call by call."""

    def install(*times: float) -> list[list[int]]:
        results, seen = iter(times), []

        def timer(run: Callable[[], Any], device: torch.device) -> float:
            result = run()
            seen.append([list(tensor.shape) for tensor in result])
            return next(results)

        def benchmark(self: stages.Compiler, kind: str, device: torch.device) -> SegmentBenchmark:
            kept = tuple(name for name, _ in self.options.partition.node_overrides)
            return SegmentBenchmark(device, "eager", kept, timer)

        monkeypatch.setattr(stages.Compiler, "_benchmark", benchmark)
        return seen

    return install


def test_the_faster_way_is_kept(measured: Callable[..., Any]) -> None:
    seen = measured(1.0, 2.0, 4.0, 3.0)
    compiled = torchkiln.compile(two, (X,), **OPTIONS, benchmark=True)
    assert [segment.kind for segment in compiled.report.segments] == ["torch", "engine"]
    moved = [rejection for rejection in compiled.report.rejections if rejection.rule == "benchmark"]
    assert {rejection.target for rejection in moved} == {"aten.relu.default", "aten.add.Tensor"}
    assert {rejection.message for rejection in moved} == {"measured 1.000 ms in PyTorch and 2.000 ms in an engine"}
    torch.testing.assert_close(compiled(X), two(X))
    assert len(seen) == 4


def test_a_tie_stays_an_engine(measured: Callable[..., Any]) -> None:
    measured(1.0, 1.0, 1.0, 1.0)
    compiled = torchkiln.compile(two, (X,), **OPTIONS, benchmark=True)
    assert [segment.kind for segment in compiled.report.segments] == ["engine", "torch", "engine"]


def test_segments_are_timed_at_the_size_that_plans_are_optimised_for(measured: Callable[..., Any]) -> None:
    seen = measured(2.0, 1.0)
    shapes = [torchkiln.Input(min_shape=(1, 4), opt_shape=(6, 4), max_shape=(8, 4))]
    torchkiln.compile(torch.nn.Softplus(), inputs=shapes, **OPTIONS, benchmark=True)
    assert seen == [[[6, 4]], [[6, 4]]]


@pytest.mark.parametrize("options", [{"require_full_compilation": True}, {"node_overrides": {"relu*": "engine", "sinh*": "engine"}}])
def test_what_must_be_an_engine_is_not_measured(measured: Callable[..., Any], options: dict[str, Any]) -> None:
    seen = measured()
    program = torch.nn.ReLU() if "require_full_compilation" in options else two
    compiled = torchkiln.compile(program, (X,), **OPTIONS, **options, benchmark=True)
    assert "engine" in [segment.kind for segment in compiled.report.segments]
    assert seen == []


def test_weights_are_there_and_indices_are_in_range(measured: Callable[..., Any]) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.linear = torch.nn.Embedding(5, 4), torch.nn.Linear(4, 2)

        def forward(self, rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return torch.where(mask, self.linear(self.table(rows)), 0.0)

    seen = measured(2.0, 1.0)
    torchkiln.compile(Net(), (torch.tensor([4, 2]), torch.tensor([[True], [False]])), **OPTIONS, benchmark=True)
    assert seen == [[[2, 2]], [[2, 2]]]


def test_inputs_are_in_every_dtype_of_the_network() -> None:
    net = Network({"s0": DimRange("s0", 1, 3, 8)})
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool):
        net.output(str(dtype), net.input(str(dtype).removeprefix("torch."), dtype, (2, 3)))
    made = example_inputs(net, torch.device("cpu"))
    assert [(value.dtype, tuple(value.shape)) for value in made] == [(value.dtype, (2, 3)) for value in net.inputs]
    assert all(bool((value != 0).any()) is value.dtype.is_floating_point for value in made)


def test_a_segment_that_cannot_be_timed_in_pytorch_stays(caplog: pytest.LogCaptureFixture) -> None:
    compiled = torchkiln.compile(torch.nn.ReLU(), (X,), **OPTIONS)
    [made] = compiled.parts[1].segments.values()

    def timer(run: Callable[[], Any], device: torch.device) -> float:
        raise RuntimeError("no such kernel")

    assert SegmentBenchmark(torch.device("cpu"), "eager", (), timer)(made, compiled.parts[1].partition.program) is None
    assert "cannot be timed in PyTorch and stays an engine: no such kernel" in caplog.text


@pytest.mark.parametrize("by_flag", [False, True])
def test_without_a_gpu_nothing_is_measured_and_that_is_said_once(by_flag: bool, caplog: pytest.LogCaptureFixture) -> None:
    with backends.flags(benchmark=by_flag):
        for _ in range(2):
            compiled = torchkiln.compile(torch.nn.ReLU(), (X,), **OPTIONS, benchmark=None if by_flag else True)
    assert [segment.kind for segment in compiled.report.segments] == ["engine"]
    [record] = [record for record in caplog.records if record.name == "torchkiln"]
    assert record.getMessage() == "benchmark: nothing is measured where engine segments run on the reference engine"


def test_calls_are_timed_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(benchmarking.torch.cuda, "synchronize", lambda device: None)
    # Each round takes one second of this clock, whatever it runs: 1 call, then 3 rounds of as many as fit.
    monkeypatch.setattr(benchmarking.time, "perf_counter", lambda: float(next(clock)))
    calls = []
    assert benchmarking.milliseconds_in_a_row(lambda: calls.append(1), torch.device("cuda")) == 1000.0
    assert len(calls) == 4 + 1 + 3
