"""Where a pooling of bfloat16 takes numbers from before they were rounded, and that it then computes the same."""

from __future__ import annotations

import torch

from torchkiln_converters.writing.unrounded import unrounded
from torchkiln_converters.writing.values import add, cast
from torchkiln_core import Interpreter, Network
from torchkiln_core.layers import Activation, ActivationKind, Reduce, ReduceOp

RELU = Activation(ActivationKind.RELU)
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def test_elementwise_layers_after_a_cast_are_written_in_float32():
    net = Network()
    wide, other = net.input("wide", torch.float32, (4, 6)), net.input("other", torch.bfloat16, (4, 6))
    rounded = add(net, net.add(RELU, cast(net, wide, torch.bfloat16)), other)
    found = unrounded(net, rounded)
    assert found.dtype is torch.float32
    net.output("found", found)
    assert torch.equal(Interpreter(net)(X, X.bfloat16())[0], X.relu() + X.bfloat16().float())


def test_a_value_that_grows_from_itself_is_written_once():
    net = Network()
    value = cast(net, net.input("wide", torch.float32, (4, 6)), torch.bfloat16)
    for _ in range(40):
        value = add(net, value, value)
    before = len(net.steps)
    assert unrounded(net, value).dtype is torch.float32
    assert len(net.steps) == before + 40


def test_values_that_no_cast_has_rounded_stay():
    net = Network()
    plain, wide = net.input("plain", torch.bfloat16, (4, 6)), net.input("wide", torch.float32, (4, 6))
    summed = net.add(Reduce(ReduceOp.SUM, (1,), True), cast(net, wide, torch.bfloat16))
    before = len(net.steps)
    for value in (plain, net.add(RELU, plain), add(net, plain, summed)):
        assert unrounded(net, value) is value
    assert len(net.steps) == before + 2
