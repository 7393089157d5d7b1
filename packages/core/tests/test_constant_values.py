"""Values that follow from constants alone are known; others are not."""

from __future__ import annotations

import pytest
import torch

from torchkiln_core import ConstantValues, Interpreter, Network
from torchkiln_core.layers import Cast, Elementwise, ElementwiseOp, Shuffle, Unary, UnaryOp


@pytest.fixture
def net() -> Network:
    return Network()


def test_chains_of_constants_are_computed(net: Network) -> None:
    weight = net.constant(torch.tensor([1.0, -2.0, 3.0]), weight="w")
    half = net.add(Cast(torch.float16), net.add(Unary(UnaryOp.NEG), weight))
    shape = net.size_tensor((3, 1))
    column = net.add(Shuffle(), half, shape)
    known = ConstantValues(net)
    expected = torch.tensor([[-1.0], [2.0], [-3.0]], dtype=torch.float16)
    torch.testing.assert_close(known.tensor(column), expected, rtol=0, atol=0)
    assert known.tensor(column) is known.tensor(column)
    assert known.tensor(weight) is not None
    assert known.tensor(None) is None


def test_what_depends_on_an_input_is_unknown(net: Network) -> None:
    x = net.input("x", torch.float32, (3,))
    weight = net.constant(torch.ones(3))
    known = ConstantValues(net)
    assert known.tensor(x) is None
    total = net.add(Elementwise(ElementwiseOp.SUM), x, weight)
    assert ConstantValues(net).tensor(total) is None


def test_a_fake_constant_is_unknown(net: Network) -> None:
    with net.fake_mode:
        weight = net.constant(torch.empty(3))
    negative = net.add(Unary(UnaryOp.NEG), weight)
    assert ConstantValues(net).tensor(negative) is None


def test_replaced_values_are_read_no_more(net: Network) -> None:
    x = net.input("x", torch.float32, (2,))
    positive, negative = net.add(Unary(UnaryOp.ABS), x), net.add(Unary(UnaryOp.NEG), x)
    net.output("y", net.add(Unary(UnaryOp.EXP), positive))
    net.output("z", positive)
    net.replace({positive: negative})
    given = torch.tensor([1.0, -1.0])
    torch.testing.assert_close(Interpreter(net)(given), ((-given).exp(), -given))
