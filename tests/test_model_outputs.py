"""``ModelOutput`` of transformers goes into compiled models and comes out of them, from both entry points."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils import ModelOutput

import torchkiln
from torchkiln_testing import OpClass, assert_same

OPTIONS = {"engine": "reference", "min_block_size": 1}


@dataclass
class Scored(ModelOutput):
    score: torch.Tensor | None = None
    hidden: tuple[torch.Tensor, ...] | None = None
    extra: torch.Tensor | None = None


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> BaseModelOutputWithPooling:
        hidden = torch.tanh(self.linear(x))
        return BaseModelOutputWithPooling(last_hidden_state=hidden, pooler_output=hidden.mean(1))


class Head(torch.nn.Module):
    """Takes one ``ModelOutput`` and returns another, by attribute, key and position."""

    def forward(self, encoded: BaseModelOutputWithPooling, return_dict: bool = True) -> Scored | tuple[torch.Tensor, ...]:
        score = torch.relu(encoded.pooler_output) + encoded["last_hidden_state"].sum(1) * 2
        hidden = (encoded[0] + 1, encoded.last_hidden_state)
        return Scored(score=score, hidden=hidden) if return_dict else (score, hidden)


class Both(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = Encoder(), Head()

    def forward(self, x: torch.Tensor) -> Scored:
        return self.head(self.encoder(x))


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def assert_same_output(expected: ModelOutput, got: ModelOutput) -> None:
    assert type(got) is type(expected)
    assert list(got.keys()) == list(expected.keys())
    assert_same(expected.to_tuple(), got.to_tuple(), OpClass.MATMUL)


@pytest.mark.parametrize("entry", ["aot", "jit"])
def test_it_comes_out(entry: str):
    net, x = Both().eval(), torch.randn(2, 5, 4)
    with torch.no_grad():
        if entry == "aot":
            compiled = torchkiln.compile(net, (x,), **OPTIONS)
        else:
            compiled = torch.compile(net, backend="torchkiln", fullgraph=True, options=OPTIONS)
        assert_same_output(net(x), compiled(x))


@pytest.mark.parametrize("entry", ["aot", "jit"])
def test_it_goes_in(entry: str):
    head, encoded = Head(), Encoder()(torch.randn(2, 5, 4))
    with torch.no_grad():
        encoded = BaseModelOutputWithPooling(**{name: value.detach() for name, value in encoded.items()})
        if entry == "aot":
            compiled = torchkiln.compile(head, (encoded,), **OPTIONS)
        else:
            compiled = torch.compile(head, backend="torchkiln", fullgraph=True, options=OPTIONS)
            assert_same(head(encoded, return_dict=False), compiled(encoded, return_dict=False), OpClass.MATMUL)
        assert_same_output(head(encoded), compiled(encoded))


def test_gradients_pass_through_it():
    torch.manual_seed(0)
    net, x = Both(), torch.randn(2, 5, 4)
    grads = []
    for model in (net, torch.compile(net, backend="torchkiln", options=OPTIONS)):
        net.zero_grad()
        model(x).score.square().sum().backward()
        grads.append([parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None])
    assert_same(grads[0], grads[1], OpClass.MODEL)


class Backwards(torch.nn.Module):
    """Sets the fields of its result in another order than that of their class, and returns its argument in one."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Scored:
        x.add_(1)
        scored = Scored(hidden=(x, y * 2))
        scored["score"] = torch.relu(y) + 1
        return scored


@pytest.mark.parametrize("entry", ["aot", "jit"])
def test_fields_that_are_set_in_another_order_keep_their_values(entry: str) -> None:
    model, x, y = Backwards(), torch.full((3,), 5.0), torch.tensor([-1.0, 0.0, 7.0])
    if entry == "aot":
        compiled = torchkiln.compile(model, (x.clone(), y), **OPTIONS)
    else:
        compiled = torch.compile(model, backend="torchkiln", options=OPTIONS)
    for _ in range(2):
        given = x.clone()
        got = compiled(given, y)
        expected = model(x.clone(), y)
        # A result that pytree puts together has its fields in the order of the class.
        assert_same((expected.score, expected.hidden), (got.score, got.hidden), OpClass.POINTWISE)
        assert got.hidden[0] is given
