"""Results come back as eager returns them: every kind of value, structure, identity, aliasing and mutation."""

from __future__ import annotations

import copy
import dataclasses
from collections import namedtuple
from typing import Any

import pytest
import torch
from torch.export import Dim
from torch.utils import _pytree as pytree

import torchkiln
from torchkiln_testing import assert_same

Pair = namedtuple("Pair", ["left", "right"])


@dataclasses.dataclass
class Result:
    score: torch.Tensor
    note: str | None = None


pytree.register_dataclass(Result)


class EveryKind(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor, k: int = 2) -> dict[str, Any]:
        y = self.linear(x)
        return {
            "tensor": y,
            "twice": (y, y),
            "none": None,
            "numbers": [k, 1.5, True, "text", float("inf")],
            "pair": Pair(y + 1, y * 2),
            "dataclass": Result(y.sum(), "kept"),
            "input": x,
            "size": x.shape[0],
        }


class Aliases(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))
        self.register_buffer("count", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        self.count.add_(1)
        y = torch.relu(x @ self.weight)
        return {
            "view of input": x.t(),
            "slice of input": x[1:, ::2],
            "parts of input": x.split(2, 1),
            "weight": self.weight,
            "view of weight": self.weight[0],
            "buffer": self.count,
            "result": y,
            "view of result": y.view(-1),
            "another": y[0],
        }


class Mutates(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        x[0] += 1
        x[:, 1].mul_(2)
        self.total += x.sum(0)
        out.copy_(x * 3)
        return x + self.total


def run_both(model: torch.nn.Module, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
    eager = copy.deepcopy(model).eval()
    compiled = torchkiln.compile(model.eval(), copy.deepcopy(args), copy.deepcopy(kwargs), engine="reference", min_block_size=1)
    with torch.no_grad():
        return eager, eager(*args, **kwargs), compiled


def test_every_kind_of_value_keeps_its_structure() -> None:
    x = torch.randn(3, 4)
    _, expected, compiled = run_both(EveryKind(), x)
    got = compiled(x)
    assert_same(expected, got)
    assert got["input"] is x
    assert got["twice"][0] is got["twice"][1] is got["tensor"]
    assert type(got["pair"]) is Pair
    assert type(got["dataclass"]) is Result


def test_sizes_are_plain_integers_of_the_call() -> None:
    model = EveryKind().eval()
    compiled = torchkiln.compile(model, (torch.randn(3, 4),), dynamic_shapes=({0: Dim("batch", min=1, max=9)},), engine="reference")
    for batch in (1, 2, 9):
        x = torch.randn(batch, 4)
        with torch.no_grad():
            assert_same(model(x), compiled(x))


def test_aliases_are_aliases() -> None:
    model = Aliases()
    x = torch.randn(3, 4)
    _, expected, compiled = run_both(model, x)
    got = compiled(x)
    assert_same(expected, got)
    assert got["view of input"]._base is x
    assert all(part._base is x for part in got["parts of input"])
    assert got["weight"] is model.weight
    assert got["view of weight"].data_ptr() == model.weight.data_ptr()
    assert got["buffer"] is model.count
    assert got["view of result"].data_ptr() == got["result"].data_ptr()
    got["result"].zero_()
    assert torch.equal(got["another"], torch.zeros(4))


def test_mutation_reaches_arguments_and_buffers_on_every_call() -> None:
    model = Mutates()
    eager = copy.deepcopy(model)
    x, out = torch.randn(2, 3), torch.empty(2, 3)
    compiled = torchkiln.compile(model, (x.clone(), out.clone()), engine="reference", min_block_size=1)
    for _ in range(3):
        x1, out1, x2, out2 = x.clone(), out.clone(), x.clone(), out.clone()
        with torch.no_grad():
            expected = eager(x1, out1)
        got = compiled(x2, out2)
        assert_same((expected, x1, out1, eager.total), (got, x2, out2, model.total))


def test_a_result_edited_by_the_caller_does_not_come_back() -> None:
    def constant(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(3), x + torch.arange(3.0)

    x = torch.randn(3)
    compiled = torchkiln.compile(constant, (x,), engine="reference", min_block_size=1)
    first, _ = compiled(x)
    first.fill_(7)
    assert torch.equal(compiled(x)[0], torch.zeros(3))


class State(torch.nn.Module):
    """Writes what it computes to its buffers, in ways that a functional graph writes alike."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("a", torch.arange(3.0))
        self.register_buffer("b", torch.arange(3.0, 6.0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = torch.relu(x + self.a)
        match self.how:
            case "value":
                self.a.copy_(h)
                return h, h.view(3, 1)
            case "buffer":
                self.a.copy_(h)
                return self.a, self.a.view(3, 1), h
            case "two buffers":
                self.a.copy_(h)
                self.b.copy_(h)
                return self.b.view(1, 3), self.a.view(1, 3), h.view(1, 3)
            case "one after the other":
                self.a.add_(x)
                self.b.copy_(self.a)
                return h, self.a + self.b
            case "shift":
                self.b.copy_(self.a)
                self.a.copy_(x)
                return h, self.b
            case _:
                before = self.b.clone()
                self.b.copy_(self.a)
                self.a.copy_(before)
                return h, before


@pytest.mark.parametrize("how", ["value", "buffer", "two buffers", "one after the other", "shift", "swap"])
def test_what_is_written_to_a_buffer_is_no_other_tensor_for_it(how: str) -> None:
    net = State(how)
    expected = copy.deepcopy(net)
    compiled = torchkiln.compile(net, (torch.randn(3),), engine="reference", min_block_size=1)
    results = []
    for _ in range(3):
        x = torch.randn(3)
        results.append((expected(x), compiled(x)))
        for buffer, wanted in zip(net.buffers(), expected.buffers(), strict=True):
            assert_same(wanted, buffer)
    for wanted, got in results:
        # Later calls have changed what is a buffer, and nothing else.
        assert_same(wanted, got)
    wanted, got = results[-1]
    assert sharing([*got, *net.buffers()]) == sharing([*wanted, *expected.buffers()])


def sharing(tensors: list[torch.Tensor]) -> list[list[bool]]:
    addresses = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [[one == other for other in addresses] for one in addresses]


def test_earlier_results_survive_later_calls() -> None:
    model = torch.nn.Linear(4, 4).eval()
    compiled = torchkiln.compile(model, (torch.randn(2, 4),), engine="reference", min_block_size=1)
    first_input = torch.randn(2, 4)
    first = compiled(first_input)
    kept = first.clone()
    compiled(torch.randn(2, 4))
    assert torch.equal(first, kept)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.int64, torch.bool])
def test_a_program_of_no_operators_returns_its_input(dtype: torch.dtype) -> None:
    x = torch.ones(2, dtype=dtype)
    compiled = torchkiln.compile(lambda value: (value, None, 3), (x,), engine="reference")
    got = compiled(x)
    assert got[0] is x
    assert got[1:] == (None, 3)


def test_torch_compile_takes_tensors_that_the_graph_holds() -> None:
    torch._dynamo.reset()

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, x / torch.tensor(2.0), torch.tensor([1.0, 2.0, 3.0]))

    x = torch.randn(4, 3)
    compiled = torch.compile(scaled, backend="torchkiln", options={"engine": "reference", "min_block_size": 1})
    assert_same(scaled(x), compiled(x))


def changes_a_part(x: torch.Tensor) -> torch.Tensor:
    y = torch.relu(x) * 2
    part = y[0]
    torch._dynamo.graph_break()
    part.add_(1)
    return y


def changes_a_chunk(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.relu(x) * 2
    left, right = y.chunk(2, 1)
    torch._dynamo.graph_break()
    left.mul_(3)
    return y, right


def changes_under_an_expanded_view(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.relu(x) * 2
    wide = y.expand(2, *y.shape)
    torch._dynamo.graph_break()
    y.add_(1)
    return y, wide


@pytest.mark.parametrize("function", [changes_a_part, changes_a_chunk, changes_under_an_expanded_view])
@pytest.mark.parametrize("dynamic", [False, True])
def test_views_stay_views_across_a_graph_break(function: Any, dynamic: bool) -> None:
    torch._dynamo.reset()
    x = torch.randn(3, 4)
    compiled = torch.compile(function, backend="torchkiln", options={"engine": "reference", "min_block_size": 1}, dynamic=dynamic)
    assert_same(function(x), compiled(x))


def test_parts_that_torch_compile_returns_share_memory() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.relu(x).chunk(2, 1), backend="torchkiln", options={"engine": "reference"})
    left, right = compiled(torch.randn(3, 4))
    assert left._base is not None
    assert left._base is right._base


def test_running_statistics_are_written_in_order() -> None:
    """Of two calls, the one that nothing keeps back must not come first."""

    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.InstanceNorm1d(3, track_running_stats=True)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            wide = torch.relu(torch.lgamma(x.abs() + 1)).exp() * 2
            first = self.norm(wide)
            return first, torch.relu(torch.exp(self.norm(y)) * wide)

    model = Twice().train()
    eager = copy.deepcopy(model)
    x, y = torch.randn(2, 3, 5), torch.randn(2, 3, 5) + 9
    compiled = torchkiln.compile(model, (x, y), engine="reference", min_block_size=1)
    compiled(x, y)
    eager(x, y)
    assert model.norm.running_mean is not None
    torch.testing.assert_close(model.norm.running_mean, eager.norm.running_mean)


@pytest.mark.parametrize("enabled", [True, False])
def test_gradients_are_on_or_off_after_a_call_as_before_it(enabled: bool) -> None:
    compiled = torchkiln.compile(lambda x: torch.relu(torch.linalg.inv(x)) * 2, (torch.eye(2),), engine="reference", min_block_size=1)
    with torch.set_grad_enabled(enabled):
        assert not compiled(torch.eye(2, requires_grad=True)).requires_grad
        assert torch.is_grad_enabled() is enabled
        with pytest.raises(torch.linalg.LinAlgError):
            compiled(torch.zeros(2, 2))
        assert torch.is_grad_enabled() is enabled
