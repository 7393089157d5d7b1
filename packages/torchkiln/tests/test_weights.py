"""Weights that change after compilation: seen under ``follow``, not looked at under ``frozen``."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

import torchkiln
from torchkiln_testing import OpClass, assert_same


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
    net.linear.weight = torch.nn.Parameter(torch.randn(2, 4))


def new_data(net: Net) -> None:
    net.linear.bias.data = torch.randn(2)


def state_dict(net: Net) -> None:
    net.load_state_dict(Net().state_dict())


def assigned_state_dict(net: Net) -> None:
    net.load_state_dict(Net().state_dict(), assign=True)


CHANGES = [in_place, folded_buffer, assignment, new_data, state_dict, assigned_state_dict]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("entry", ["aot", "jit"])
def test_the_next_call_follows(change: Callable[[Net], None], entry: str) -> None:
    torch._dynamo.reset()
    net, x = Net().eval(), torch.randn(2, 3, 8, 8)
    options = {"engine": "reference", "min_block_size": 1, "weights": "follow"}
    compiled = torchkiln.compile(net, (x,), **options) if entry == "aot" else torch.compile(net, backend="torchkiln", options=options)
    with torch.no_grad():
        assert_same(net(x), compiled(x), OpClass.MATMUL)
        for _ in range(2):
            before = net(x)
            change(net)
            assert not torch.allclose(before, net(x))
            assert_same(net(x), compiled(x), OpClass.MATMUL)


def test_frozen_keeps_the_weights_until_refresh() -> None:
    net, x = Net().eval(), torch.randn(2, 3, 8, 8)
    compiled = torchkiln.compile(net, (x,), engine="reference", min_block_size=1)
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
