"""Scales and shifts after a convolution become its kernel and bias, unless that would cost precision or another reader needs the result."""

from __future__ import annotations

import pytest
import torch

from torchkiln_converters.folding import fold_channel_scales
from torchkiln_converters.writing.shapes import reshape
from torchkiln_converters.writing.values import add, cast, mul, sub
from torchkiln_core import Interpreter, Network
from torchkiln_core.layers import Convolution, Elementwise

LAYER = Convolution((1, 1), (1, 1), (1, 1), (1, 1), 2)


def network(dtype: torch.dtype = torch.float32, *, scale: float = 1.0, bias: bool = True, shift: str = "add", wide: bool = True) -> Network:
    torch.manual_seed(0)
    net = Network()
    x = net.input("x", dtype, (2, 4, 5, 5))
    operands = [net.constant(torch.randn(6, 2, 3, 3, dtype=dtype), weight="kernel")]
    if bias:
        operands.append(net.constant(torch.randn(6, dtype=dtype), weight="bias"))
    result = net.add(LAYER, x, *operands)
    up = torch.float32 if wide else dtype
    factor = reshape(net, net.constant((torch.rand(6) + 0.5).mul(scale).to(up)), (1, 6, 1, 1))
    moved = reshape(net, net.constant(torch.randn(6).to(up)), (1, 6, 1, 1))
    result = mul(net, cast(net, result, up), factor)
    if shift == "add":
        result = add(net, moved, result)
    elif shift == "sub":
        result = sub(net, result, moved)
    elif shift == "from":
        result = sub(net, moved, result)
    net.output("y", cast(net, result, dtype))
    return net


def folded(net: Network) -> bool:
    """Whether the output is that of a convolution."""
    [(_, value)] = net.outputs
    return any(value in step.outputs and isinstance(step.layer, Convolution) for step in net.steps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shift", ["add", "sub", "none"])
@pytest.mark.parametrize("wide", [True, False])
def test_the_folded_network_computes_the_same(dtype: torch.dtype, bias: bool, shift: str, wide: bool) -> None:
    x = torch.randn(2, 4, 5, 5, dtype=dtype)
    before, after = (network(dtype, bias=bias, shift=shift, wide=wide) for _ in range(2))
    fold_channel_scales(after)
    assert folded(after)
    assert not folded(before)
    [expected], [got] = Interpreter(before)(x), Interpreter(after)(x)
    close = {torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 1.5e-1}[dtype]
    torch.testing.assert_close(got, expected, rtol=0, atol=close)


def test_a_difference_from_the_shift_keeps_its_sign() -> None:
    net = network(shift="from")
    fold_channel_scales(net)
    x = torch.randn(2, 4, 5, 5)
    torch.testing.assert_close(Interpreter(net)(x), Interpreter(network(shift="from"))(x))


@pytest.mark.parametrize("scale", [1e6, 1e-6])
def test_a_kernel_that_its_dtype_cannot_hold_is_left_alone(scale: float) -> None:
    net = network(torch.float16, scale=scale)
    fold_channel_scales(net)
    assert not folded(net)


def test_a_result_that_is_read_twice_is_left_alone() -> None:
    net = network()
    convolution = next(step for step in net.steps if isinstance(step.layer, Convolution))
    net.output("raw", convolution.outputs[0])
    before = len(net.steps)
    fold_channel_scales(net)
    assert len(net.steps) == before


def test_a_computed_kernel_is_left_alone() -> None:
    net = Network()
    x, kernel = net.input("x", torch.float32, (2, 4, 5, 5)), net.input("kernel", torch.float32, (6, 2, 3, 3))
    scale = net.constant(torch.rand(1, 6, 1, 1))
    net.output("y", mul(net, net.add(LAYER, x, kernel), scale))
    fold_channel_scales(net)
    assert not folded(net)
    assert any(isinstance(step.layer, Elementwise) for step in net.steps)


@pytest.mark.parametrize("factor", ["constant", "input"])
def test_a_convolution_of_a_constant_is_no_scale(factor: str) -> None:
    def constant_network() -> Network:
        torch.manual_seed(0)
        net = Network()
        given = net.input("y", torch.float32, (1, 6, 1, 1))
        operands = [net.constant(torch.randn(1, 4, 3, 3)), net.constant(torch.randn(6, 4, 3, 3))]
        result = net.add(Convolution((1, 1), (0, 0), (0, 0), (1, 1)), *operands)
        other = net.constant(torch.rand(1, 6, 1, 1) + 0.5) if factor == "constant" else given
        net.output("z", mul(net, result, other))
        return net

    net, y = constant_network(), torch.randn(1, 6, 1, 1)
    fold_channel_scales(net)
    torch.testing.assert_close(Interpreter(net)(y), Interpreter(constant_network())(y))
