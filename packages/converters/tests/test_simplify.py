"""The rewriting of written networks: fewer layers, the same results."""

from __future__ import annotations

import math

import pytest
import torch

from torchkiln_converters.simplify import MAX_FOLDED_BYTES, simplify
from torchkiln_core import Interpreter, Network
from torchkiln_core.layers import (
    Activation,
    ActivationKind,
    Cast,
    Constant,
    Elementwise,
    ElementwiseOp,
    Gather,
    GatherMode,
    Select,
    Shuffle,
    Slice,
)

SUM, PROD, LESS = (Elementwise(op) for op in (ElementwiseOp.SUM, ElementwiseOp.PROD, ElementwiseOp.LESS))


def kinds(net):
    return [step.layer.kind() for step in net.steps]


def simplified(net, *inputs):
    """Runs the network before and after, and expects equal bits."""
    before = Interpreter(net)(*inputs)
    simplify(net)
    after = Interpreter(net)(*inputs)
    for old, new in zip(before, after, strict=True):
        assert old.dtype == new.dtype
        assert torch.equal(torch.nan_to_num(old), torch.nan_to_num(new))
        assert torch.equal(torch.signbit(old), torch.signbit(new))
    return net


@pytest.fixture
def net():
    return Network()


@pytest.fixture
def x(net):
    return net.input("x", torch.float32, (3, 4))


X = torch.arange(12.0).reshape(3, 4) - 5


def test_what_follows_from_constants_becomes_one(net, x):
    rows = net.add(Shuffle(dims=(3, 1)), net.constant(torch.arange(3)))
    columns = net.add(Shuffle(dims=(1, 4)), net.constant(torch.arange(4)))
    seen = net.add(Gather(GatherMode.DEFAULT, 0), net.constant(torch.tensor([2, 0, 1])), rows)
    mask = net.add(LESS, columns, net.add(Shuffle(dims=(3, 1)), seen))
    net.output("y", net.add(Select(), mask, x, net.constant(torch.full((1, 1), -math.inf))))
    assert kinds(simplified(net, X)) == ["Constant", "Constant", "Select"]


def test_weights_stay_under_their_names(net, x):
    weight = net.constant(torch.ones(4), weight="scale")
    twin = net.constant(torch.ones(4), weight="other")
    for item in (weight, twin):
        x = net.add(PROD, x, net.add(Shuffle(dims=(1, 4)), item))
    net.output("y", x)
    simplified(net, X)
    assert [step.weight for step in net.steps if isinstance(step.layer, Constant)] == ["scale", "other"]
    assert kinds(net).count("Shuffle") == 2


def test_equal_layers_are_written_once(net, x):
    for _ in range(2):
        wide = net.add(Cast(torch.float16), x)
        x = net.add(Cast(torch.float32), net.add(SUM, wide, wide))
    twice = net.add(SUM, net.add(Activation(ActivationKind.RELU), x), net.add(Activation(ActivationKind.RELU), x))
    net.output("y", twice)
    simplified(net, X)
    assert kinds(net).count("Activation") == 1
    assert kinds(net).count("Cast") == 4


def test_attributes_that_only_look_equal_are_kept_apart(net, x):
    first = net.add(Activation(ActivationKind.LEAKY_RELU, 0.0), x)
    second = net.add(Activation(ActivationKind.LEAKY_RELU, -0.0), x)
    net.output("y", net.add(SUM, first, second))
    simplified(net, X)
    assert kinds(net).count("Activation") == 2


@pytest.mark.parametrize(("left", "right", "count"), [(0.0, -0.0, 2), (1.0, 1.0, 1), (math.nan, math.nan, 1)])
def test_constants_are_compared_by_their_bits(net, x, left, right, count):
    for number in (left, right):
        net.output(f"y{number}{len(net.outputs)}", net.add(PROD, x, net.constant(torch.full((1, 1), number))))
    simplified(net, X)
    assert kinds(net).count("Constant") == count


def test_equal_constants_of_other_dtypes_are_kept_apart(net):
    first, second = net.constant(torch.zeros(1, dtype=torch.int32)), net.constant(torch.zeros(1, dtype=torch.float32))
    for name, value in (("a", first), ("b", second)):
        net.output(name, net.add(Shuffle(), value))
    simplified(
        net,
    )
    assert [value.dtype for _, value in net.outputs] == [torch.int32, torch.float32]


@pytest.mark.parametrize(("condition", "left"), [([True] * 4, 0), ([False] * 4, 0), ([True, False, True, True], 1)])
def test_a_select_without_a_choice_goes(net, x, condition, left):
    other = net.add(SUM, x, x)
    chosen = net.add(Select(), net.constant(torch.tensor([condition])), x, other)
    net.output("y", net.add(PROD, chosen, chosen))
    simplified(net, X)
    assert kinds(net).count("Select") == left


def test_a_select_that_broadcasts_its_choice_stays(net, x):
    zero = net.constant(torch.zeros(1, 1))
    chosen = net.add(Select(), net.constant(torch.zeros(1, 4, dtype=torch.bool)), x, zero)
    net.output("y", net.add(SUM, chosen, x))
    assert kinds(simplified(net, X)).count("Select") == 1


def test_every_output_keeps_a_layer_of_its_own(net, x):
    relus = [net.add(Activation(ActivationKind.RELU), x) for _ in range(3)]
    for index, value in enumerate(relus[:2]):
        net.output(f"y{index}", value)
    net.output("same", net.add(Select(), net.constant(torch.ones(1, 1, dtype=torch.bool)), x, relus[2]))
    simplified(net, X)
    assert kinds(net).count("Activation") == 2
    assert len({value for _, value in net.outputs}) == 3


def test_expansions_stay_layers(net, x):
    one = net.constant(torch.full((1, 1), 2.0))
    wide = net.add(Slice((0, 0), (3, 4), (0, 0)), one)
    net.output("y", net.add(SUM, x, wide))
    assert kinds(simplified(net, X)) == ["Constant", "Slice", "Elementwise"]


def test_large_results_are_not_stored():
    net = Network()
    side = math.isqrt(MAX_FOLDED_BYTES) + 1
    x = net.input("x", torch.bool, (1, 1))
    row = net.add(Shuffle(dims=(1, side)), net.constant(torch.arange(side)))
    column = net.add(Shuffle(dims=(side, 1)), net.constant(torch.arange(side)))
    net.output("y", net.add(Elementwise(ElementwiseOp.AND), x, net.add(LESS, row, column)))
    simplified(net, torch.ones(1, 1, dtype=torch.bool))
    assert "Elementwise" in kinds(net)
    assert max(step.layer.tensor.nbytes for step in net.steps if isinstance(step.layer, Constant)) <= MAX_FOLDED_BYTES


def test_a_shape_tensor_may_stand_in_for_an_equal_constant(net, x):
    plain = net.constant(torch.tensor([4, 3]))
    shaped = net.add(Shuffle(), x, net.size_tensor((4, 3)))
    net.output("y", net.add(Shuffle(dims=(4, 3)), net.add(SUM, shaped, shaped)))
    net.output("n", net.add(Cast(torch.float32), plain))
    simplified(net, X)
    (reshape,) = [step for step in net.steps if step.layer == Shuffle() and len(step.inputs) == 2]
    assert reshape.inputs[1].sizes == (4, 3)
