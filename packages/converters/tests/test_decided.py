"""Conditions that a constant decides depend on the other operand all the same, and are right."""

from __future__ import annotations

import pytest
import torch

from torchkiln_converters.decided import write_decided
from torchkiln_core import ConstantValues, Interpreter, Network
from torchkiln_core.layers import Constant, Elementwise, ElementwiseOp, Reduce, ReduceOp, Slice, Unary, UnaryOp

FLAGS = torch.tensor([[True, False, True], [False, False, True]])
DECIDES = {ElementwiseOp.OR: True, ElementwiseOp.AND: False}


def constant(net, truth, form):
    """One truth value everywhere: as it is, broadcast to more than the other operand has, and as what other layers make of a constant."""
    match form:
        case "element":
            return net.constant(torch.full((1, 1), truth))
        case "row":
            return net.constant(torch.full((1, 3), truth))
        case "negated":
            return net.add(Unary(UnaryOp.NOT), net.constant(torch.full((1, 3), not truth)))
        case "expanded":
            return net.add(Slice((0, 0), (2, 3), (0, 0)), net.constant(torch.full((1, 1), truth)))
        case "empty":
            return net.constant(torch.full((0, 1), truth))


def network(op, truth, form, swap):
    net = Network()
    rows = 1 if form == "empty" else 2
    x = net.input("x", torch.bool, (rows, 3))
    other = constant(net, truth, form)
    net.output("y", net.add(Elementwise(op), *((other, x) if swap else (x, other))))
    return net


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("form", ["element", "row", "negated", "expanded", "empty"])
@pytest.mark.parametrize("truth", [False, True])
@pytest.mark.parametrize("op", [ElementwiseOp.OR, ElementwiseOp.AND, ElementwiseOp.XOR])
def test_the_result_stays_what_it_was(op, truth, form, swap):
    net, before = network(op, truth, form, swap), network(op, truth, form, swap)
    write_decided(net)
    x = FLAGS[:1] if form == "empty" else FLAGS
    (got,), (expected,) = Interpreter(net)(x), Interpreter(before)(x)
    assert got.shape == expected.shape
    assert torch.equal(got, expected)
    decided = DECIDES.get(op) == truth or (form == "empty" and op in DECIDES)
    assert (len(net.steps) != len(before.steps)) is decided


@pytest.mark.parametrize("op", DECIDES)
def test_no_constant_decides_afterwards(op):
    net = network(op, DECIDES[op], "row", swap=False)
    write_decided(net)
    known = ConstantValues(net)
    for step in net.steps:
        if isinstance(step.layer, Elementwise):
            contents = [known.tensor(value) for value in step.inputs if known.knows(value)]
            assert not any(bool((tensor == DECIDES[step.layer.op]).all()) for tensor in contents)


def test_a_chain_of_them_and_mixed_constants():
    net = Network()
    x = net.input("x", torch.bool, (2, 3))
    true, mixed = net.constant(torch.ones(1, 1, dtype=torch.bool)), net.constant(FLAGS[:1])
    first = net.add(Elementwise(ElementwiseOp.OR), x, true)
    second = net.add(Elementwise(ElementwiseOp.OR), true, first)
    net.output("second", second)
    net.output("mixed", net.add(Elementwise(ElementwiseOp.OR), second, mixed))
    net.output("both", net.add(Elementwise(ElementwiseOp.OR), true, mixed))
    before = [step.layer for step in net.steps]
    write_decided(net)
    second, joined, both = Interpreter(net)(FLAGS)
    assert second.all()
    assert joined.all()
    assert both.all()
    assert sum(layer == Elementwise(ElementwiseOp.OR) for layer in before) == 4
    assert sum(step.layer == Elementwise(ElementwiseOp.AND) for step in net.steps) == 2


def test_networks_without_one_stay_as_they_are():
    net = Network()
    x = net.input("x", torch.float32, (2, 3))
    net.output("y", net.add(Reduce(ReduceOp.SUM, (1,), True), x))
    net.constant(torch.ones(1))
    steps = net.steps
    write_decided(net)
    assert net.steps is steps
    assert any(isinstance(step.layer, Constant) for step in net.steps)
