"""Where a pooling of bfloat16 takes numbers from before they were rounded, that it computes the same, and where it is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F

from torchkiln_converters.folding import fold_channel_scales
from torchkiln_converters.unrounded import pool_unrounded
from torchkiln_converters.writing.shapes import reshape
from torchkiln_converters.writing.values import add, cast, mul
from torchkiln_core import ConversionError, Interpreter, Network, Value
from torchkiln_core.layers import Activation, ActivationKind, Concatenation, Convolution, Pooling, PoolingKind, Reduce, ReduceOp

RELU = Activation(ActivationKind.RELU)
SIGMOID = Activation(ActivationKind.SIGMOID)
POOL = Pooling(PoolingKind.MAX, (2, 2), (2, 2), (0, 0), (0, 0))
SHAPE = (2, 3, 4, 4)
X = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0)).bfloat16()
KERNEL = torch.randn(3, 3, 1, 1, generator=torch.Generator().manual_seed(1)).bfloat16()


def convolved(net: Network, scale: Sequence[float] = (1.7,)) -> Value:
    """``[2, 3, 4, 4]`` in bfloat16: a convolution in it, rounded again after a product in float32."""
    x = net.input("x", torch.bfloat16, SHAPE)
    kernel = net.constant(KERNEL, weight="kernel")
    result = net.add(Convolution((1, 1), (0, 0), (0, 0), (1, 1), 1), x, kernel)
    factor = net.constant(torch.tensor(scale).reshape(1, -1, 1, 1))
    return cast(net, mul(net, cast(net, result, torch.float32), factor), torch.bfloat16)


def eager() -> torch.Tensor:
    return (F.conv2d(X, KERNEL).float() * 1.7).bfloat16()


def pooled_dtypes(net: Network) -> list[torch.dtype]:
    """Of the poolings that an output needs."""
    needed = {value for _, value in net.outputs}
    found = []
    for step in reversed(net.steps):
        if not needed.isdisjoint(step.outputs):
            needed.update(value for value in step.inputs if value is not None)
            found += [step.outputs[0].dtype] * isinstance(step.layer, Pooling)
    return found


@pytest.mark.parametrize(
    ("between", "in_eager"),
    [
        pytest.param(lambda net, x: x, lambda x: x, id="nothing"),
        pytest.param(lambda net, x: net.add(RELU, x), F.relu, id="relu"),
        pytest.param(lambda net, x: net.add(Concatenation(1), x, net.add(RELU, x)), lambda x: torch.cat([x, x.relu()], 1), id="cat"),
        pytest.param(lambda net, x: reshape(net, x, (1, 6, 4, 4)), lambda x: x.reshape(1, 6, 4, 4), id="reshape"),
        pytest.param(lambda net, x: net.add(POOL, x), lambda x: F.max_pool2d(x, 2), id="another pooling"),
    ],
)
def test_a_maximum_is_taken_before_the_rounding(
    between: Callable[[Network, Value], Value], in_eager: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    net = Network()
    net.output("pooled", net.add(POOL, between(net, convolved(net))))
    pool_unrounded(net)
    assert set(pooled_dtypes(net)) == {torch.float32}
    assert torch.equal(Interpreter(net)(X)[0], F.max_pool2d(in_eager(eager()), 2))


@pytest.mark.parametrize("between", [lambda net, x: net.add(SIGMOID, x), lambda net, x: add(net, x, x)], ids=["sigmoid", "sum"])
def test_rounding_that_cannot_be_put_off_refuses_the_pooling(between: Callable[[Network, Value], Value]) -> None:
    """The maximum would not be one of the numbers that other readers see."""
    net = Network()
    with net.scope("max_pool2d"):
        net.output("pooled", net.add(POOL, between(net, convolved(net))))
    with pytest.raises(ConversionError, match="wrong numbers") as refusal:
        pool_unrounded(net)
    assert refusal.value.node == "max_pool2d"


def test_a_value_that_grows_from_itself_is_written_once() -> None:
    net = Network()
    value = convolved(net)
    for _ in range(40):
        value = net.add(RELU, value)
    net.output("pooled", net.add(POOL, value))
    before = len(net.steps)
    pool_unrounded(net)
    assert len(net.steps) == before + 42
    assert pooled_dtypes(net) == [torch.float32]


def test_what_no_cast_behind_a_convolution_has_rounded_stays() -> None:
    net = Network()
    plain, wide = net.input("plain", torch.bfloat16, SHAPE), net.input("wide", torch.float32, SHAPE)
    rounded = cast(net, wide, torch.bfloat16)
    summed = net.add(Reduce(ReduceOp.SUM, (1,), True), rounded)
    for index, value in enumerate((plain, net.add(SIGMOID, plain), net.add(SIGMOID, rounded), add(net, plain, summed))):
        net.output(f"pooled{index}", net.add(POOL, value))
    before = len(net.steps)
    pool_unrounded(net)
    assert len(net.steps) == before


def test_a_scale_that_becomes_part_of_a_convolution_leaves_nothing_to_widen() -> None:
    net = Network()
    rounded = net.add(SIGMOID, convolved(net, (1.7, 0.6, 1.1)))
    net.output("skip", rounded)
    net.output("pooled", net.add(POOL, rounded))
    fold_channel_scales(net)
    pool_unrounded(net)
    assert pooled_dtypes(net) == [torch.bfloat16]
