"""Loops and conditionals reach TensorRT body by body; what it refuses is refused with the layer's name."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from torchkiln_core import BuildError, InternalError, Network
from torchkiln_core.layers import (
    Cast,
    Collected,
    Elementwise,
    ElementwiseOp,
    IfConditional,
    Iterated,
    Loop,
    LoopOutput,
    MatrixMultiply,
    Reduce,
    ReduceOp,
    Shuffle,
    Softmax,
    Unary,
    UnaryOp,
    operand_input,
    recurrence_input,
    slice_input,
)
from torchkiln_runtime import ReferenceEngine, TensorRTBuilder

F32 = torch.float32
NEG, EXP, ADD, LESS = Unary(UnaryOp.NEG), Unary(UnaryOp.EXP), Elementwise(ElementwiseOp.SUM), Elementwise(ElementwiseOp.LESS)


def conditional(net, condition, x, then=NEG, otherwise=EXP):
    """``then(x)`` or ``otherwise(x)``."""
    bodies = []
    for name, layer in (("then", then), ("otherwise", otherwise)):
        body = net.body(name)
        body.output("y", body.add(layer, operand_input(body, "x", x)))
        bodies.append(body)
    return net.add(IfConditional(*bodies), condition, x)


def below(net, x, bound):
    total = net.add(Reduce(ReduceOp.SUM, tuple(range(x.rank)), keep_dims=False), x)
    return net.add(LESS, total, net.constant(torch.tensor(bound)))


@pytest.fixture(params=["static", "dynamic"])
def empty(request, make_dynamic):
    """An empty network and a size of it."""
    return (Network(), 3) if request.param == "static" else make_dynamic()


def agree(net, options, *inputs):
    """Builds a plan, and returns what the reference computes."""
    plan = TensorRTBuilder(options).build(net)
    engine = ReferenceEngine(net)
    assert [(b.name, b.dtype, b.shape) for b in plan.outputs] == [(b.name, b.dtype, b.shape) for b in engine.outputs]
    assert plan.key == TensorRTBuilder(options).key(net)
    return engine(*inputs)


def test_a_conditional_inside_a_loop_whose_condition_is_data(empty, ahead):
    """Every layer inside is one whose dtype TensorRT does not infer on its own around the cycle of a recurrence."""
    net, n = empty
    x = net.input("x", F32, (n, 2))
    body = net.body("body")
    state = recurrence_input(body, "state", x)
    body.output("next", conditional(body, below(body, state, 2.0), state))
    net.output("y", net.add(Loop(body), None, net.size_tensor((3,)), x))
    (y,) = agree(net, ahead, torch.full((3, 2), 0.25))
    expected = torch.full((3, 2), 0.25)
    for _ in range(3):
        expected = -expected if expected.sum() < 2 else expected.exp()
    assert torch.equal(y, expected)


def test_a_recurrent_cell_with_weights_over_a_dynamic_sequence(empty, ahead):
    net, n = empty
    x, hidden = net.input("x", F32, (2, n, 4)), net.input("hidden", F32, (2, 4))
    weight = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    body = net.body("body")
    state, row = recurrence_input(body, "state", hidden), slice_input(body, "row", x, 1)
    state = body.add(ADD, body.add(MatrixMultiply(), state, body.constant(weight, "cell.weight")), row)
    body.output("next", state)
    body.output("seen", state)
    layer = Loop(body, None, (Iterated(1),), (Collected(LoopOutput.CONCATENATE, 1),))
    for value in net.add_many(layer, None, net.size_tensor((x.shape[1],)), hidden, x):
        net.output("y", value)
    given, start = torch.randn(2, 3, 4), torch.randn(2, 4)
    last, seen = agree(net, ahead, given, start)
    expected = []
    for part in given.unbind(1):
        start = start @ weight + part
        expected.append(start)
    assert torch.allclose(seen, torch.stack(expected, 1))
    assert torch.equal(last, seen[:, -1])


@pytest.mark.parametrize("low", [0, 1])
def test_a_loop_over_nothing(make_dynamic, ahead, low):
    net, n = make_dynamic(low)
    x = net.input("x", F32, (n, 2))
    body = net.body("body")
    state, row = recurrence_input(body, "state", net.constant(torch.ones(2))), slice_input(body, "row", x, 0)
    state = body.add(ADD, state, row)
    body.output("next", state)
    body.output("seen", state)
    layer = Loop(body, None, (Iterated(),), (Collected(LoopOutput.REVERSE, 1),))
    initial = net.constant(torch.ones(2))
    for value in net.add_many(layer, None, net.size_tensor((x.shape[0],)), initial, x):
        net.output("y", value)
    last, seen = agree(net, ahead, torch.zeros(low, 2))
    assert torch.equal(last, torch.ones(2))
    assert torch.equal(seen, torch.ones(2, low))


@pytest.mark.parametrize("picked", [0, 1])
def test_a_loop_in_a_conditional_needs_not_all_its_outputs(empty, ahead, picked):
    net, n = empty
    p, x, initial = net.input("p", torch.bool, ()), net.input("x", F32, (n, 2)), net.input("initial", F32, (n, 2))
    then, otherwise = net.body("then"), net.body("otherwise")
    given, start = operand_input(then, "x", x), operand_input(then, "initial", initial)
    body = then.body("body")
    state, other = recurrence_input(body, "state", given), recurrence_input(body, "other", start)
    body.output("next", body.add(NEG, state))
    body.output("next", body.add(ADD, other, other))
    results = then.add_many(Loop(body), None, then.size_tensor((3,)), given, start)
    then.add(EXP, results[1 - picked])
    then.output("y", results[picked])
    operand_input(otherwise, "x", x)
    otherwise.output("y", otherwise.add(EXP, operand_input(otherwise, "initial", initial)))
    net.output("y", net.add(IfConditional(then, otherwise), p, x, initial))
    a, b = torch.randn(3, 2), torch.randn(3, 2)
    (y,) = agree(net, ahead, torch.tensor(True), a, b)
    assert torch.equal(y, (-a, b * 8)[picked])


def test_outputs_of_bodies_share_no_memory():
    net = Network()
    p, x = net.input("p", torch.bool, ()), net.input("x", F32, (2,))
    held = torch.ones(2)
    bodies = []
    for name in ("then", "otherwise"):
        body = net.body(name)
        value = operand_input(body, "x", x)
        for result in (value, body.constant(held), value):
            body.output("y", result)
        bodies.append(body)
    for value in net.add_many(IfConditional(*bodies), p, x):
        net.output("y", value)
    given = torch.zeros(2)
    outputs = ReferenceEngine(net)(torch.tensor(True), given)
    places = [tensor.untyped_storage().data_ptr() for tensor in (*outputs, given, held)]
    assert len(set(places)) == len(places)


def test_other_inference_than_ours_inside_a_body_is_our_error(ahead):
    net = Network()
    p, x = net.input("p", torch.bool, ()), net.input("x", F32, (2, 3))
    with net.scope("cond", "model.py:9"):
        net.output("y", conditional(net, p, x))
    step = next(step for step in net.all_steps() if step.name == "cond/then/Unary")
    step.outputs[0].shape = (2, 4)
    with pytest.raises(InternalError, match=r"TensorRT infers FLOAT\[2, 3\]") as caught:
        TensorRTBuilder(ahead).build(net)
    assert (caught.value.layer, caught.value.where) == ("cond/then/Unary", "model.py:9")


@pytest.mark.parametrize("part", ["input", "output"])
def test_other_inference_than_ours_at_the_border_of_a_body_is_our_error(ahead, part):
    net = Network()
    x = net.input("x", F32, (2, 3))
    with net.scope("loop", "model.py:9"):
        body = net.body("body")
        body.output("next", body.add(NEG, recurrence_input(body, "state", x)))
        y = net.add(Loop(body), None, net.size_tensor((2,)), x)
    net.output("y", y)
    (body.inputs[0] if part == "input" else y).shape = (2, 4)
    with pytest.raises(InternalError, match=r"TensorRT infers FLOAT\[2, 3\]") as caught:
        TensorRTBuilder(ahead).build(net)
    assert (caught.value.layer, caught.value.where) == ("loop/Loop", "model.py:9")


def test_a_layer_refused_inside_a_body_names_itself(ahead):
    net = Network()
    p, x = net.input("p", torch.bool, ()), net.input("x", torch.bool, (2, 3))
    with net.scope("cond", "model.py:7 in forward"):
        net.output("y", conditional(net, p, x, Shuffle(), Shuffle()))
    (layer,) = (step.layer for step in net.steps)
    layer.otherwise.steps[0] = dataclasses.replace(layer.otherwise.steps[0], layer=Softmax(1))
    with pytest.raises(BuildError, match=r"model\.py:7") as caught:
        TensorRTBuilder(ahead).build(net)
    assert caught.value.node == "cond/otherwise/Shuffle"


def test_a_layer_refused_when_the_body_is_built_names_itself(ahead):
    net = Network()
    x = net.input("x", F32, (2, 3))
    with net.scope("cond", "model.py:7"):
        net.output("y", net.add(Cast(F32), conditional(net, below(net, x, 1.0), x, Cast(torch.uint8), Cast(torch.uint8))))
    with pytest.raises(BuildError, match="UInt8") as caught:
        TensorRTBuilder(ahead).build(net)
    assert caught.value.node.startswith("cond/")


def test_a_plan_depends_on_the_weights_of_bodies(ahead):
    def network(scale):
        net = Network()
        x = net.input("x", F32, (2,))
        body = net.body("body")
        body.output("next", body.add(ADD, recurrence_input(body, "state", x), body.constant(torch.full((2,), scale), "w")))
        net.output("y", net.add(Loop(body), None, net.size_tensor((2,)), x))
        return net

    builder = TensorRTBuilder(ahead)
    assert builder.key(network(1.0)) == builder.key(network(1.0))
    assert builder.key(network(1.0)) != builder.key(network(2.0))
