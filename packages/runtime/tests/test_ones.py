"""Which sizes inside of a network may be 1, and for which inputs one is."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from torchkiln_core import DimRange, Network, Value
from torchkiln_core.layers import MatrixMultiply, MatrixOp, Softmax, Unary, UnaryOp
from torchkiln_runtime.ones import Ones, inner_sizes
from torchkiln_runtime.reference import bindings_of
from torchkiln_runtime.shapes import find_symbols


def attention(lengths: tuple[int, int]) -> tuple[Network, Value]:
    """``[b, s, 4] -> [b, s, 4]`` with a batch of 1 to 8."""
    mode = FakeTensorMode(shape_env=ShapeEnv(duck_shape=False))
    example = torch.empty(3, 5)
    fake = mode.from_tensor(example, symbolic_context=StatelessSymbolicContext([DimDynamic.DYNAMIC] * 2))
    batch, length = fake.shape
    dims = {str(batch): DimRange(str(batch), 1, 3, 8), str(length): DimRange(str(length), lengths[0], lengths[1], lengths[1])}
    net = Network(dims, mode)
    with net.scope("attention", None):
        x = net.input("x", torch.float32, (batch, length, 4))
        weights = net.add(Softmax(2), net.add(MatrixMultiply(MatrixOp.NONE, MatrixOp.TRANSPOSE), x, x))
        net.output("y", net.add(MatrixMultiply(), weights, x))
    return net, x


def ones_of(net: Network) -> Ones:
    inputs, _ = bindings_of(net)
    ranges = [(spec.min_shape, spec.max_shape) for spec in net.specs()]
    symbols = find_symbols(inputs)
    return Ones(inputs, symbols, ranges, inner_sizes(net, symbols))


def test_a_length_counts_and_a_batch_does_not() -> None:
    net, x = attention((1, 9))
    assert inner_sizes(net, find_symbols(bindings_of(net)[0])) == (x.shape[1],)
    ones = ones_of(net)
    assert [ones.among(((batch, length, 4),)) for batch, length in ((1, 2), (4, 1), (1, 1), (4, 9))] == [False, True, True, False]


def test_a_length_of_two_or_more_never_counts() -> None:
    net, _ = attention((2, 9))
    assert inner_sizes(net, find_symbols(bindings_of(net)[0])) == ()
    assert not ones_of(net).among(((4, 2, 4),))


def test_a_network_without_products_has_none() -> None:
    net = Network()
    with net.scope("negative", None):
        net.output("y", net.add(Unary(UnaryOp.NEG), net.input("x", torch.float32, (1, 4))))
    assert inner_sizes(net, find_symbols(bindings_of(net)[0])) == ()
    assert not ones_of(net).among(((1, 4),))
