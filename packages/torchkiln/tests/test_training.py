"""Training under ``torch.compile``: forward in engines, backward in PyTorch, and the gradients of eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchkiln
from torchkiln.segment_compiler import SegmentCompiler
from torchkiln_testing import OpClass, assert_same

Reports = list[torchkiln.Report]


@pytest.fixture(autouse=True)
def _seeded(fresh_dynamo: None) -> None:
    torch.manual_seed(0)


class Net(torch.nn.Module):
    """A convolution with batch statistics, a frozen layer and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)
        self.frozen, self.head = torch.nn.Linear(4, 4).requires_grad_(False), torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return self.head(torch.tanh(self.frozen(x)))


def train(model: Callable[..., Any], net: torch.nn.Module, steps: int = 3) -> list[float]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    generator, losses = torch.Generator().manual_seed(1), []
    for _ in range(steps):
        loss = (model(torch.randn(4, 3, 6, 6, generator=generator)) ** 2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("weights", ["follow", "frozen"])
def test_steps_of_an_optimizer_are_those_of_eager(
    jit: Callable[..., Any], reports: Reports, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    compile_segment = SegmentCompiler.compile
    monkeypatch.setattr(SegmentCompiler, "compile", lambda self, *args: made.append("engine") or compile_segment(self, *args))
    net = Net()
    twin = copy.deepcopy(net)
    assert_same(torch.tensor(train(net, net)), torch.tensor(train(jit(twin, {"weights": weights}), twin)), OpClass.MODEL)
    assert_same(dict(net.state_dict()), dict(twin.state_dict()), OpClass.MODEL)
    # What is trained enters engines as input: a step builds nothing anew.
    assert len(reports) == 1
    assert len(made) == sum(segment.kind == "engine" for segment in reports[0].segments) > 0


def test_after_training_inference_has_the_new_weights(jit: Callable[..., Any], reports: Reports) -> None:
    net = Net()
    compiled = jit(net)
    train(compiled, net, steps=1)
    net.eval()
    x = torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        assert_same(net(x), compiled(x), OpClass.MODEL)
    assert len(reports) == 2


def gradients(function: Callable[..., Any], *inputs: torch.Tensor) -> list[torch.Tensor | None]:
    leaves = [value.detach().clone().requires_grad_(value.requires_grad) for value in inputs]
    results = function(*leaves)
    sum((result * (index + 1)).sum() for index, result in enumerate(results) if result.requires_grad).backward()
    return [leaf.grad for leaf in leaves]


def some_results_without_gradient(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.argmax(1), torch.sigmoid(x) * y, y.detach() + 1


def in_place(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = x * 2
    z[:, 0] += y[:, 0]
    z.mul_(y)
    return (z,)


def views_of_an_input(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.t(), torch.exp(x.view(-1)[2:]), y[0]


def a_call_in_pytorch(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (torch.lgamma(torch.relu(x) + 1) * torch.tanh(y),)


def one_value_twice(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    z = torch.sin(x + y)
    return z, z, z * z


class Doubled(torch.autograd.Function):
    """A gradient that is not the derivative."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 10


def a_gradient_of_ones_own(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (Doubled.apply(torch.cos(x)) + y,)


def checkpointed(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (torch.utils.checkpoint.checkpoint(lambda value: torch.tanh(value @ y.t()), x, use_reentrant=False),)


PROGRAMS = [
    some_results_without_gradient,
    in_place,
    views_of_an_input,
    a_call_in_pytorch,
    one_value_twice,
    a_gradient_of_ones_own,
    checkpointed,
]


# torch 2.11 makes an object of the class itself.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("trained", [(True, True), (True, False)], ids=["both", "the first"])
def test_gradients_are_those_of_eager(jit: Callable[..., Any], program: Callable[..., Any], trained: tuple[bool, bool]) -> None:
    inputs = [torch.randn(3, 4).requires_grad_(needs) for needs in trained]
    assert_same(gradients(program, *inputs), gradients(jit(program), *inputs), OpClass.MATMUL)


def test_dropout_passes_gradients_where_it_passed_values(jit: Callable[..., Any]) -> None:
    x = torch.ones(1000, requires_grad=True)
    y = jit(lambda value: torch.nn.functional.dropout(value * 3, 0.25) + 0)(x)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad * 1.0, y.detach())
    assert 150 < int((y == 0).sum()) < 350


def test_a_second_derivative_is_refused_by_torch(jit: Callable[..., Any]) -> None:
    x = torch.randn(3, requires_grad=True)
    [first] = torch.autograd.grad(jit(lambda value: (value**3).sum())(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        first.sum().backward()


def test_gradients_of_a_dynamic_batch(jit: Callable[..., Any], reports: Reports) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.GELU(), torch.nn.Linear(5, 1))
    compiled = jit(net)
    for rows in (2, 4, 7, 3):
        x = torch.randn(rows, 3)
        grads = []
        for model in (net, compiled):
            net.zero_grad()
            model(x).square().mean().backward()
            grads.append([parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None])
        assert_same(grads[0], grads[1], OpClass.MODEL)
    assert len(reports) == 2


def test_ahead_of_time_results_carry_no_gradient() -> None:
    compiled = torchkiln.compile(torch.nn.Linear(3, 2), (torch.randn(4, 3),), engine="reference")
    result = compiled(torch.randn(4, 3, requires_grad=True))
    assert not result.requires_grad
    with pytest.raises(RuntimeError, match="does not require grad"):
        result.sum().backward()
