"""LSTM against eager: every form of the layer, batches of any size, and the calls that stay whole."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch
from lowering_programs import FLOATS, Oracle, aten, guard_state, run, targets, whole
from torch.export import Dim

from torchkiln_lowering import AtenLowering
from torchkiln_lowering.decompose import MAX_CALLS
from torchkiln_lowering.decompositions.recurrent import _CALLS

ORACLE = Oracle(aten.linear.default, aten.unbind.int, aten.stack.default, aten.zeros.default, aten.transpose.int)
# Export says of every recurrent layer that it keeps a list of its weights, and eager that it has no kernel of oneDNN for some.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The tensor attributes? self.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning"),
]
FORMS = [
    {"num_layers": layers, "bidirectional": both, "batch_first": first, "bias": bias, "proj_size": projection}
    for layers, both, first, bias, projection in itertools.product((1, 3), (False, True), (False, True), (False, True), (0, 2))
]


@functools.cache
def last_states_are_known() -> bool:
    """Whether the torch in use traces last states in their shape: older releases add a dimension, and such calls stay whole."""
    exported = torch.export.export(torch.nn.LSTM(1, 1), (torch.ones(1, 2, 1),))
    (call,) = (node for node in exported.graph.nodes if node.target is torch.ops.aten.lstm.input)
    return bool(call.meta["val"][1].dim() == 3)


class Layer(torch.nn.Module):
    def __init__(self, **form: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.whole = last_states_are_known()
        self.lstm = torch.nn.LSTM(4, 3, **form)

    def forward(self, x: torch.Tensor, state: torch.Tensor, cell: torch.Tensor) -> Any:
        out, (last, memory) = self.lstm(x, (state, cell))
        return (out, last, memory) if self.whole else (out,)


def _inputs(form: dict[str, Any], batch: int, steps: int = 5) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(batch)
    layers = form.get("num_layers", 1) * (2 if form.get("bidirectional") else 1)
    shape = (batch, steps, 4) if form.get("batch_first") else (steps, batch, 4)
    states = (torch.randn(layers, batch, size, generator=generator) for size in (form.get("proj_size", 0) or 3, 3))
    return torch.randn(shape, generator=generator), *states


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_form(form: dict[str, Any]) -> None:
    model, args = Layer(**form), _inputs(form, 3)
    batch = Dim("batch", min=1, max=8)
    for shapes in (None, ({0 if form["batch_first"] else 1: batch}, {1: batch}, {1: batch})):
        program = whole(model, args, shapes)
        guards = guard_state(program)
        lowered = AtenLowering().lower(program, ORACLE)
        assert guard_state(program) == guards
        assert aten.lstm.input not in targets(lowered)
        for size in (1, 3, 8) if shapes else (3,):
            args = _inputs(form, size)
            for mine, theirs in zip(run(lowered, *args), model(*args), strict=True):
                assert mine.stride() == theirs.stride()
                torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_dtypes_and_corners(dtype: torch.dtype) -> None:
    model = Layer(bidirectional=True).to(dtype)
    args = tuple(item.to(dtype) for item in _inputs({"bidirectional": True}, 4))
    args[0][:, 0], args[0][2, 1], args[0][1, 2] = 0, float("inf"), float("nan")
    lowered = AtenLowering().lower(whole(model, args), ORACLE)
    assert aten.lstm.input not in targets(lowered)
    loose = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    for mine, theirs in zip(run(lowered, *args), model(*args), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=loose, atol=loose, equal_nan=True)


def test_one_step_and_an_empty_batch() -> None:
    model = Layer()
    for batch, steps in ((2, 1), (0, 3)):
        args = _inputs({}, batch, steps)
        lowered = AtenLowering().lower(whole(model, args), ORACLE)
        for mine, theirs in zip(run(lowered, *args), model(*args), strict=True):
            torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("form", [{}, {"num_layers": 3, "bidirectional": True}, {"proj_size": 2}], ids=str)
def test_many_steps_keep_the_call(form: dict[str, Any]) -> None:
    """Neither ours, which is as long as the sequence, nor that of PyTorch, which is made of oneDNN's kernels."""
    assert targets(AtenLowering().lower(whole(Layer(**form), _inputs(form, 1, 130)), ORACLE)).count(aten.lstm.input) == 1


def test_the_longest_sequence_is_not_too_long() -> None:
    form = {"num_layers": 2, "bidirectional": True, "proj_size": 2, "batch_first": True}
    lowered = AtenLowering().lower(whole(Layer(**form), _inputs(form, 1, MAX_CALLS // 4 // _CALLS - 1)), ORACLE)
    assert aten.lstm.input not in targets(lowered)
