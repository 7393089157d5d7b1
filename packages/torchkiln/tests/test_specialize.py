"""Static engines for shapes that come often: swapped in while calls go on, with the same results."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.export import Dim

import torchkiln
from torchkiln.specializing import StaticEngines
from torchkiln_core import BuildError
from torchkiln_testing import OpClass, assert_same

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Net(torch.nn.Module):
    """Two engine segments around a call that stays in PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.lgamma(torch.relu(self.first(x)) + 1)
        return torch.softmax(self.second(y), -1).reshape(-1, 2) * x.shape[0]


def compiled_net(net: torch.nn.Module, device: str = "cpu", **options: Any) -> tuple[Any, list[torchkiln.Report]]:
    reports: list[torchkiln.Report] = []
    settings = {"engine": "reference", "min_block_size": 1, "specialize": 3, "on_report": reports.append} | options
    shapes = ({0: Dim("rows", min=1, max=64)},)
    return torchkiln.compile(net, (torch.randn(3, 4, device=device),), dynamic_shapes=shapes, **settings), reports


def check(net: torch.nn.Module, compiled: Any, rows: int, times: int = 1, device: str = "cpu") -> None:
    for _ in range(times):
        x = torch.randn(rows, 4, device=device)
        with torch.no_grad():
            assert_same(net(x), compiled(x), OpClass.MATMUL)


def states(report: torchkiln.Report) -> list[tuple[str, tuple[int, ...], str]]:
    return [(found.segment, found.shapes[0], found.state) for found in report.static_engines]


def test_every_engine_is_swapped_for_a_static_one() -> None:
    net = Net().eval()
    compiled, reports = compiled_net(net)
    check(net, compiled, 5, 2)
    assert states(compiled.report) == []
    check(net, compiled, 5, 2)
    assert compiled.wait_for_static_engines(60)
    assert states(compiled.report) == [("engine_0", (5, 4), "serving"), ("engine_2", (5, 4), "serving")]
    for made in compiled.parts[1].segments.values():
        static = made.engine.engine_for([(5, 4)])
        assert [binding.shape for binding in static.inputs] == [(5, 4)]
        assert made.engine.engine_for([(6, 4)]) is not static
    check(net, compiled, 5, 3)
    check(net, compiled, 6, 2)
    # One report of the compilation and one for each swap.
    assert len(reports) == 3
    assert "static engine for [5, 4]: serving" in str(compiled.report)


def test_off_by_default() -> None:
    net = Net().eval()
    compiled, _ = compiled_net(net, specialize=None)
    check(net, compiled, 5, 9)
    assert compiled.report.static_engines == ()


def test_a_failing_build_leaves_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, shapes: Any) -> Any:
        raise BuildError("no kernel")

    monkeypatch.setattr(StaticEngines, "build", fail)
    net = Net().eval()
    compiled, reports = compiled_net(net)
    check(net, compiled, 5, 4)
    assert compiled.wait_for_static_engines(60)
    assert [state for _, _, state in states(compiled.report)] == ["failed", "failed"]
    assert "no kernel" in str(compiled.report)
    check(net, compiled, 5, 4)
    assert len(reports) == 3


def test_the_number_is_bounded() -> None:
    net = Net().eval()
    compiled, _ = compiled_net(net, specialize_limit=2)
    for rows in (5, 6, 7, 8):
        check(net, compiled, rows, 3)
        assert compiled.wait_for_static_engines(60)
    serving = [rows for segment, (rows, _), state in states(compiled.report) if state == "serving" and segment == "engine_0"]
    assert serving == [7, 8]
    for rows in (5, 6, 7, 8):
        check(net, compiled, rows)


def test_changed_weights_are_seen_by_static_engines() -> None:
    net = Net().eval()
    for follow in ("follow", "frozen"):
        compiled, _ = compiled_net(net, weights=follow)
        check(net, compiled, 5, 4)
        assert compiled.wait_for_static_engines(60)
        with torch.no_grad():
            net.first.weight.mul_(2)
        if follow == "frozen":
            compiled.refresh()
        check(net, compiled, 5, 4)
        assert compiled.wait_for_static_engines(60)
        check(net, compiled, 5)


def test_static_shapes_need_no_dispatch() -> None:
    net = Net().eval()
    compiled = torchkiln.compile(net, (torch.randn(3, 4),), engine="reference", min_block_size=1, specialize=1)
    check(net, compiled, 3, 4)
    assert compiled.report.static_engines == ()


def test_under_torch_compile() -> None:
    net = Net().eval()
    reports: list[torchkiln.Report] = []
    swapped = threading.Event()

    def listen(report: torchkiln.Report) -> None:
        reports.append(report)
        if [state for _, _, state in states(report)] == ["serving", "serving"]:
            swapped.set()

    options = {"engine": "reference", "min_block_size": 1, "specialize": 2, "on_report": listen}
    compiled = torch.compile(net, backend="torchkiln", options=options, dynamic=True)
    check(net, compiled, 5, 3)
    assert swapped.wait(60)
    check(net, compiled, 5, 3)
    check(net, compiled, 9)
    assert states(reports[-1]) == [("engine_0", (5, 4), "serving"), ("engine_2", (5, 4), "serving")]


def test_threads_call_while_engines_are_swapped() -> None:
    net = Net().eval()
    compiled, _ = compiled_net(net, specialize_limit=2)
    gate = threading.Barrier(4)

    def call(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        gate.wait()
        for number in range(40):
            x = torch.randn(2 + number % 5, 4, generator=generator)
            with torch.no_grad():
                assert_same(net(x), compiled(x), OpClass.MATMUL)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(call, range(4)))
    assert compiled.wait_for_static_engines(60)
    assert sum(state == "serving" for _, _, state in states(compiled.report)) == 4


@pytest.mark.parametrize("options", [{"specialize": 0}, {"specialize_limit": 0}, {"kernel_specialization": "often"}])
def test_values_outside_their_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        compiled_net(Net().eval(), **options)


@pytest.mark.gpu
@pytest.mark.parametrize("side", [False, True])
def test_on_tensorrt(side: bool) -> None:
    torchkiln.backends.plan_cache.max_size = 16
    try:
        net = Net().eval().cuda()
        compiled, _ = compiled_net(net, device="cuda", engine="tensorrt")
        before = torchkiln.backends.plan_cache.size
        with torch.cuda.stream(torch.cuda.Stream() if side else torch.cuda.current_stream()):
            check(net, compiled, 5, 4, "cuda")
            assert compiled.wait_for_static_engines(300)
            assert [state for _, _, state in states(compiled.report)] == ["serving", "serving"]
            check(net, compiled, 5, 5, "cuda")
            check(net, compiled, 6, 2, "cuda")
        assert torchkiln.backends.plan_cache.size == before + 2
        # A shape that was warmed up in the background can be captured.
        x = torch.randn(5, 4, device="cuda")
        compiled(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            y = compiled(x)
        x.copy_(torch.randn(5, 4, device="cuda"))
        graph.replay()
        torch.cuda.synchronize()
        with torch.no_grad():
            assert_same(net(x), y, OpClass.MATMUL)
    finally:
        torchkiln.backends.plan_cache.max_size = 0


@pytest.mark.gpu
def test_changed_weights_stop_static_engines_of_a_frozen_program() -> None:
    net = Net().eval().cuda()
    compiled, _ = compiled_net(net, device="cuda", engine="tensorrt", weights="frozen")
    with torch.no_grad():
        kept = net(x := torch.randn(5, 4, device="cuda"))
        net.first.weight.mul_(2)
        for _ in range(4):
            assert_same(kept, compiled(x), OpClass.MATMUL)
    assert compiled.wait_for_static_engines(300)
    failed = [found for found in compiled.report.static_engines if found.segment == "engine_0"]
    assert [found.state for found in failed] == ["failed"]
    assert "a weight has changed" in failed[0].reason


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", ["lazy", "eager", "none"])
def test_kernel_specialization_strategies_give_the_same(strategy: str) -> None:
    net = Net().eval().cuda()
    compiled, _ = compiled_net(net, device="cuda", engine="tensorrt", specialize=None, kernel_specialization=strategy)
    for rows in (1, 5, 64, 5):
        check(net, compiled, rows, 2, "cuda")
