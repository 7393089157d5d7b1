"""LSTM in an engine, unrolled over its steps: equal to eager in every form of the layer, for any batch."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch.export import Dim

import torchkiln
from torchkiln_testing import OpClass, assert_same

FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch first": {"batch_first": True},
    "two layers": {"num_layers": 2, "dropout": 0.5},
    "both directions": {"bidirectional": True, "num_layers": 2},
    "without bias": {"bias": False},
    "projected": {"proj_size": 2},
    "everything": {"proj_size": 2, "bidirectional": True, "num_layers": 2, "batch_first": True, "bias": False},
}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@functools.cache
def last_states_are_known() -> bool:
    """Whether the torch in use traces last states in their shape: older releases add a dimension, and such calls stay whole."""
    exported = torch.export.export(torch.nn.LSTM(1, 1), (torch.ones(1, 2, 1),))
    (call,) = (node for node in exported.graph.nodes if node.target is torch.ops.aten.lstm.input)
    return bool(call.meta["val"][1].dim() == 3)


class Last(torch.nn.Module):
    """Outputs and last states ``[L, N, H]``, from given ones or from zeros."""

    def __init__(self, form: dict[str, Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.whole = last_states_are_known()
        self.lstm = torch.nn.LSTM(4, 3, **form)

    def forward(self, x: torch.Tensor, state: torch.Tensor | None = None, cell: torch.Tensor | None = None) -> Any:
        out, last = self.lstm(x) if state is None or cell is None else self.lstm(x, (state, cell))
        return (out, *last) if self.whole else (out,)


def inputs(form: dict[str, Any], batch: int, dtype: torch.dtype, device: str) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(batch)
    layers = form.get("num_layers", 1) * (2 if form.get("bidirectional") else 1)
    x = torch.randn(*((batch, 5) if form.get("batch_first") else (5, batch)), 4, generator=generator)
    states = (torch.randn(layers, batch, size, generator=generator) for size in (form.get("proj_size", 0) or 3, 3))
    return tuple(item.to(device, dtype) for item in (x, *states))


def check(name: str, dtype: torch.dtype, dynamic: bool, given: bool, device: str, **options: Any) -> None:
    form, count = FORMS[name], 3 if given else 1
    model = Last(form).to(device, dtype).eval()
    args = inputs(form, 3, dtype, device)[:count]
    batch = Dim("batch", min=1, max=8)
    shapes = ({0 if form.get("batch_first") else 1: batch}, {1: batch}, {1: batch})[:count] if dynamic else None
    compiled = torchkiln.compile(model, args, dynamic_shapes=shapes, require_full_compilation=True, **options)
    assert [segment.kind for segment in compiled.report.segments] == ["engine"]
    for size in (1, 3, 8) if dynamic else (3,):
        with torch.no_grad():
            args = inputs(form, size, dtype, device)[:count]
            assert_same(model(*args), compiled(*args), OpClass.MODEL)


# Export says of every recurrent layer that it keeps a list of its weights, and eager that it has no kernel of oneDNN for some.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The tensor attributes? self.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning"),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FORMS)
def test_lstm_on_the_reference_engine(name: str, dtype: torch.dtype) -> None:
    check(name, dtype, False, True, "cpu", engine="reference", targets=["sm_89"])


@pytest.mark.parametrize("name", FORMS)
def test_lstm_of_any_batch_on_the_reference_engine(name: str) -> None:
    check(name, torch.float32, True, True, "cpu", engine="reference", targets=["sm_89"])
    check(name, torch.float32, True, False, "cpu", engine="reference", targets=["sm_89"])


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:RNN module weights")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FORMS)
def test_lstm_on_tensorrt(name: str, dtype: torch.dtype, dynamic: bool) -> None:
    check(name, dtype, dynamic, True, "cuda", engine="tensorrt")


def test_one_example_without_a_batch() -> None:
    model = Last({}).eval()
    x = torch.randn(5, 4)
    compiled = torchkiln.compile(model, (x,), engine="reference", require_full_compilation=True)
    with torch.no_grad():
        assert_same(model(x), compiled(x), OpClass.MODEL)
