"""Results of transformers' classes are what their constructors make, whoever makes them."""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import torchkiln
from torchkiln.model_outputs import ModelOutputForm
from torchkiln.structure import Container

transformers = pytest.importorskip("transformers")
outputs = pytest.importorskip("transformers.modeling_outputs")
ONE, TWO = torch.ones(2), torch.zeros(3)


@dataclasses.dataclass
class Plain(transformers.utils.ModelOutput):
    scores: torch.Tensor | None = None
    labels: torch.Tensor | None = None


@dataclasses.dataclass
class Counting(transformers.utils.ModelOutput):
    scores: torch.Tensor | None = None
    made = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        type(self).made += 1


@dataclasses.dataclass
class Holding(transformers.utils.ModelOutput):
    scores: torch.Tensor | None = None
    inner: Plain | None = None


class Named(transformers.utils.ModelOutput):
    def __init__(self, scores: torch.Tensor) -> None:
        OrderedDict.__init__(self, scores=scores)


def state(value: Any) -> tuple[Any, ...]:
    return type(value), list(OrderedDict.items(value)), list(vars(value).items())


def check(value: Any) -> Container:
    """The same fields put together by the class and by the container give the same."""
    leaves, spec = pytree.tree_flatten(value)
    container = Container.of(spec)
    assert container is not None
    expected, got = pytree.tree_unflatten(leaves, spec), container.put_together(iter(leaves))
    assert state(got) == state(expected)
    return container


@pytest.mark.parametrize(
    "value",
    [
        outputs.BaseModelOutputWithPoolingAndCrossAttentions(last_hidden_state=ONE, pooler_output=TWO),
        outputs.ImageClassifierOutput(logits=ONE),
        outputs.SequenceClassifierOutput(logits=ONE, hidden_states=(ONE, TWO), loss=TWO),
        Plain(scores=ONE),
        Plain(labels=ONE),
        Plain(scores=ONE, labels=TWO),
    ],
)
def test_is_what_the_constructor_makes(value):
    container = check(value)
    assert container.model_output is not None


def test_behaves_as_what_the_constructor_makes():
    made = ModelOutputForm.of(Plain, ["scores", "labels"], 2)
    assert made is not None
    got = made.make([ONE, TWO])
    assert got.scores is got["scores"] is got[0] is ONE
    assert got.to_tuple() == (ONE, TWO)
    got.labels = ONE
    assert got["labels"] is ONE
    assert state(copy.copy(got)) == state(got)
    with pytest.raises(Exception, match="pop"):
        got.pop("scores")


def test_fields_come_in_the_order_of_the_constructor():
    made = Plain(labels=ONE)
    made.scores = TWO
    container = check(made)
    assert container.model_output is not None
    assert container.model_output.keys == ("scores", "labels")


@pytest.mark.parametrize("fields", [[None, ONE], [ONE, None], [(ONE, TWO), ONE], [1, ONE]])
def test_other_fields_go_through_the_constructor(fields):
    form = ModelOutputForm.of(Plain, ["scores", "labels"], 2)
    assert form is not None
    assert not form.takes(fields)


def test_a_constructor_of_its_own_is_called():
    before = Counting.made
    container = check(Counting(scores=ONE))
    assert container.model_output is None
    assert Counting.made == before + 3
    assert ModelOutputForm.of(Named, ["scores"], 1) is None
    assert ModelOutputForm.of(transformers.utils.ModelOutput, ["scores"], 1) is None
    assert ModelOutputForm.of(OrderedDict, ["scores"], 1) is None
    assert ModelOutputForm.of(dict, ["scores"], 1) is None


def test_a_constructor_that_is_written_in_text_is_called():
    names: dict[str, Any] = {"Base": transformers.utils.ModelOutput, "dataclass": dataclasses.dataclass}
    exec("@dataclass\nclass Text(Base):\n    a: object = None\n    def __init__(self, a):\n        self.a = a", names)  # noqa: S102
    assert ModelOutputForm.of(names["Text"], ["a"], 1) is None


def test_a_value_without_fields():
    check(Holding(scores=ONE, inner=Plain()))
    assert ModelOutputForm.of(Plain, [], 0) is None


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return outputs.SequenceClassifierOutput(logits=x.sin(), hidden_states=(x, x.cos()))


def test_results_of_a_compiled_model():
    x = torch.linspace(-1, 1, 6).reshape(2, 3)
    compiled = torchkiln.compile(Model(), (x,), engine="reference", min_block_size=1)
    for _ in range(2):
        got, expected = compiled(x), Model()(x)
        assert type(got) is type(expected)
        assert list(got) == list(expected)
        assert got.hidden_states[0] is x
        torch.testing.assert_close(got.logits, expected.logits)
        assert got.loss is None
