"""Weights that change after compilation: seen under ``follow``, not looked at under ``frozen``."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import torchkiln
from torchkiln.segment_compiler import SegmentCompiler
from torchkiln.weights import WeightWatch
from torchkiln_testing import OpClass, assert_same

ENGINES = [pytest.param("reference", "cpu", id="reference"), pytest.param("tensorrt", "cuda", id="tensorrt", marks=pytest.mark.gpu)]


@pytest.fixture(autouse=True)
def _plain_fp32() -> Iterator[None]:
    """Eager's convolutions on a GPU use TF32 by default, which is no truth to compare fp32 with."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)
        self.linear = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


def in_place(net: Net) -> None:
    with torch.no_grad():
        net.conv.weight.mul_(2)


def folded_buffer(net: Net) -> None:
    net.norm.running_mean.add_(0.5)


def assignment(net: Net) -> None:
    net.linear.weight = torch.nn.Parameter(torch.randn_like(net.linear.weight))


def new_data(net: Net) -> None:
    net.linear.bias.data = torch.randn_like(net.linear.bias)


def state_dict(net: Net) -> None:
    net.load_state_dict(Net().state_dict())


def assigned_state_dict(net: Net) -> None:
    net.load_state_dict(Net().to(net.linear.weight.device).state_dict(), assign=True)


CHANGES = [in_place, folded_buffer, assignment, new_data, state_dict, assigned_state_dict]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("entry", ["aot", "jit"])
@pytest.mark.parametrize(("engine", "device"), ENGINES)
def test_the_next_call_follows(change: Callable[[Net], None], entry: str, engine: str, device: str) -> None:
    torch._dynamo.reset()
    net, x = Net().eval().to(device), torch.randn(2, 3, 8, 8, device=device)
    options = {"engine": engine, "min_block_size": 1, "weights": "follow"}
    compiled = torchkiln.compile(net, (x,), **options) if entry == "aot" else torch.compile(net, backend="torchkiln", options=options)
    with torch.no_grad():
        assert_same(net(x), compiled(x), OpClass.MATMUL)
        for _ in range(2):
            before = net(x)
            change(net)
            assert not torch.allclose(before, net(x))
            assert_same(net(x), compiled(x), OpClass.MATMUL)


@pytest.mark.parametrize(("engine", "device"), ENGINES)
def test_frozen_keeps_the_weights_until_refresh(engine: str, device: str) -> None:
    net, x = Net().eval().to(device), torch.randn(2, 3, 8, 8, device=device)
    compiled = torchkiln.compile(net, (x,), engine=engine, min_block_size=1)
    before = copy.deepcopy(net)
    with torch.no_grad():
        assignment(net)
        assert_same(before(x), compiled(x), OpClass.MATMUL)
        compiled.refresh()
        assert_same(net(x), compiled(x), OpClass.MATMUL)


def test_weights_are_no_inputs_of_the_engine() -> None:
    net, x = Net().eval(), torch.randn(2, 3, 8, 8)
    inputs = []
    reports: list[torchkiln.Report] = []
    torch._dynamo.reset()
    compiled = torch.compile(net, backend="torchkiln", options={"engine": "reference", "on_report": reports.append})
    with torch.no_grad():
        compiled(x)
    aot = torchkiln.compile(net, (x,), engine="reference")
    _, program = aot.parts
    [segment] = program.segments.values()
    inputs.append([value.name for value in segment.network.inputs])
    assert inputs == [["x"]]
    [report] = reports
    assert [part.kind for part in report.segments] == ["engine"]


def test_gradients_are_those_of_eager() -> None:
    torch._dynamo.reset()
    net = Net().eval()
    twin = copy.deepcopy(net)
    compiled = torch.compile(net, backend="torchkiln", options={"engine": "reference", "min_block_size": 1})
    for _ in range(2):
        x = torch.randn(2, 3, 8, 8)
        compiled(x).square().sum().backward()
        twin(x).square().sum().backward()
        for (name, left), (_, right) in zip(twin.named_parameters(), net.named_parameters(), strict=True):
            assert left.grad is not None
            assert right.grad is not None
            assert_same(left.grad, right.grad, OpClass.MATMUL, name)
        for module in (net, twin):
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None


def gone(net: Net) -> None:
    del net.linear.weight


def none(net: Net) -> None:
    net.linear.bias = None


def another_shape(net: Net) -> None:
    net.linear.weight = torch.nn.Parameter(torch.randn(3, 4))


def another_dtype(net: Net) -> None:
    net.double()


def another_device(net: Net) -> None:
    net.norm.running_mean = torch.empty(4, device="meta")


def another_module(net: Net) -> None:
    net.linear = torch.nn.Identity()  # type: ignore[assignment]


@pytest.mark.parametrize("change", [gone, none, another_shape, another_dtype, another_device, another_module])
def test_a_weight_of_another_kind_is_refused_on_every_call(change: Callable[[Net], None]) -> None:
    net, x = Net().eval(), torch.randn(2, 3, 8, 8)
    compiled = torchkiln.compile(net, (x,), engine="reference", min_block_size=1, weights="follow")
    change(net)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"weight .*: expected torch\.float32 .* as at compile time, got .*; compile again"):
            compiled(x)


def test_other_weights_at_the_same_address_are_seen() -> None:
    memory = bytearray(16)
    weight = torch.nn.Parameter(torch.frombuffer(memory, dtype=torch.float32))
    watch = WeightWatch({"weight": weight})
    assert not watch.changed({"weight": weight})
    memory[:] = bytes(range(16))
    # As an allocator does that gives out once more what a weight left, for instance in net.half().float().
    weight.data = torch.frombuffer(memory, dtype=torch.float32)
    assert watch.changed({"weight": weight}) == {"weight"}


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


@pytest.mark.parametrize("name", ["first", "second"])
def test_weights_that_are_no_longer_shared_are_refused(name: str) -> None:
    net, x = Tied(), torch.randn(3, 4)
    compiled = torchkiln.compile(net, (x,), engine="reference", min_block_size=1, weights="follow")
    with torch.no_grad():
        net.first.weight.mul_(2)
        assert_same(net(x), compiled(x), OpClass.MATMUL)
        net.first.weight = net.second.weight = torch.nn.Parameter(torch.randn(4, 4))
        assert_same(net(x), compiled(x), OpClass.MATMUL)
    getattr(net, name).weight = torch.nn.Parameter(torch.randn(4, 4))
    with pytest.raises(ValueError, match="shares"):
        compiled(x)


def test_the_last_weights_outlive_the_module() -> None:
    net, x = Tied(), torch.randn(3, 4)
    compiled = torchkiln.compile(net, (x,), engine="reference", min_block_size=1)
    net.first.weight = net.second.weight = torch.nn.Parameter(torch.randn(4, 4))
    compiled.refresh()
    with torch.no_grad():
        expected = net(x)
    del net
    gc.collect()
    compiled.refresh()
    assert_same(expected, compiled(x), OpClass.MATMUL)


def test_a_failed_refresh_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = Net().eval(), torch.randn(2, 3, 8, 8)
    compiled = torchkiln.compile(net, (x,), engine="reference", min_block_size=1, weights="follow")
    in_place(net)
    with monkeypatch.context() as patch:
        patch.setattr(SegmentCompiler, "compile", lambda *_: (_ for _ in ()).throw(torchkiln.BuildError("no memory")))
        with pytest.raises(torchkiln.BuildError):
            compiled(x)
    with torch.no_grad():
        assert_same(net(x), compiled(x), OpClass.MATMUL)


def test_threads_may_call_while_weights_change() -> None:
    net, x = Tied(), torch.randn(3, 4)
    compiled = torchkiln.compile(net, (x,), engine="reference", min_block_size=1, weights="follow")

    def calls(index: int) -> None:
        for _ in range(10):
            if index == 0:
                with torch.no_grad():
                    net.first.weight.mul_(1.1)
            compiled(x)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(calls, range(4)))
    with torch.no_grad():
        assert_same(net(x), compiled(x), OpClass.MATMUL)
