"""The reference engine runs the record and refuses what an engine would refuse."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from torchkiln_core import InternalError, Network, PlanError, ShapeOutOfProfile
from torchkiln_core.layers import Shuffle, Unary, UnaryOp
from torchkiln_runtime import ReferenceEngine


def test_results_are_those_of_the_layers(static_network):
    x = torch.randn(2, 3)
    (y,) = ReferenceEngine(static_network)(x)
    assert torch.equal(y, F.gelu(x @ (torch.arange(12.0).reshape(3, 4) / 10 - 0.5)))


@pytest.mark.parametrize("n", [1, 4, 16])
def test_dynamic_sizes_run(dynamic_network, n):
    x = torch.randn(n, 6)
    halves, rows = ReferenceEngine(dynamic_network)(x)
    assert torch.equal(halves, x.reshape(-1, 3).softmax(1))
    assert torch.equal(rows, x.softmax(1))


def test_sizes_outside_the_range_are_refused(dynamic_network):
    with pytest.raises(ShapeOutOfProfile, match=r"'x', dimension 0: expected a size in \[1, 16\], got 17"):
        ReferenceEngine(dynamic_network)(torch.randn(17, 6))
    with pytest.raises(ShapeOutOfProfile, match="dimension 1: expected 6, got 5"):
        ReferenceEngine(dynamic_network)(torch.randn(2, 5))
    with pytest.raises(ShapeOutOfProfile, match="rank 2"):
        ReferenceEngine(dynamic_network)(torch.randn(2))


def test_other_inputs_are_refused(static_network):
    engine = ReferenceEngine(static_network)
    with pytest.raises(PlanError, match="expected 1 inputs, got 2"):
        engine(torch.randn(2, 3), torch.randn(2, 3))
    with pytest.raises(PlanError, match=r"'x': expected torch\.float32, got torch\.float16"):
        engine(torch.randn(2, 3).half())


def test_outputs_share_no_memory():
    net = Network()
    x = net.input("x", torch.float32, (2, 3))
    held = net.constant(torch.ones(2))
    y = net.add(Unary(UnaryOp.NEG), x)
    for value in (x, net.add(Shuffle((1, 0)), x), held, y, y, net.add(Shuffle(dims=(6,)), y)):
        net.output("out", value)
    given = torch.randn(2, 3)
    outputs = ReferenceEngine(net)(given)
    before = [tensor.clone() for tensor in outputs]
    places = [tensor.untyped_storage().data_ptr() for tensor in (*outputs, given, held.constant)]
    assert len(set(places)) == len(places)
    assert all(tensor.is_contiguous() for tensor in outputs)
    assert all(torch.equal(a, b) for a, b in zip(ReferenceEngine(net)(given), before, strict=True))


def test_a_broken_promise_is_our_error():
    net = Network()
    x = net.input("x", torch.float32, (2, 3))
    y = net.add(Unary(UnaryOp.NEG), x)
    y.shape = (2, 4)
    net.output("y", y)
    with pytest.raises(InternalError, match=r"expected shape \[2, 4\], got \[2, 3\]"):
        ReferenceEngine(net)(torch.randn(2, 3))


def test_attributes_describe_the_engine(dynamic_network):
    engine = ReferenceEngine(dynamic_network)
    assert engine.kind == "reference"
    assert [binding.name for binding in engine.inputs] == ["x"]
    assert [binding.name for binding in engine.outputs] == ["halves", "rows"]
