"""Where a pooling of bfloat16 takes numbers from before they were rounded, and that it then computes the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from torchkiln_converters.folding import fold_channel_scales
from torchkiln_converters.unrounded import pool_unrounded
from torchkiln_converters.writing.shapes import reshape
from torchkiln_converters.writing.values import add, cast, mul
from torchkiln_core import Interpreter, Network, Value
from torchkiln_core.layers import Activation, ActivationKind, Concatenation, Convolution, Pooling, PoolingKind, Reduce, ReduceOp

RELU = Activation(ActivationKind.RELU)
POOL = Pooling(PoolingKind.MAX, (2, 2), (2, 2), (0, 0), (0, 0))
SHAPE = (2, 3, 4, 4)
X = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
POOLED = torch.nn.functional.max_pool2d


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
    ("between", "eager"),
    [
        pytest.param(lambda net, x: x, lambda x: x, id="nothing"),
        pytest.param(lambda net, x: add(net, net.add(RELU, x), x), lambda x: x.relu() + x, id="elementwise"),
        pytest.param(lambda net, x: net.add(Concatenation(1), x, net.add(RELU, x)), lambda x: torch.cat([x, x.relu()], 1), id="cat"),
        pytest.param(lambda net, x: reshape(net, x, (1, 6, 4, 4)), lambda x: x.reshape(1, 6, 4, 4), id="reshape"),
        pytest.param(lambda net, x: net.add(POOL, x), lambda x: POOLED(x, 2), id="another pooling"),
    ],
)
def test_what_is_between_a_cast_and_a_pooling_is_written_in_float32(
    between: Callable[[Network, Value], Value], eager: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    net = Network()
    rounded = cast(net, net.input("wide", torch.float32, SHAPE), torch.bfloat16)
    net.output("pooled", net.add(POOL, between(net, rounded)))
    pool_unrounded(net)
    assert set(pooled_dtypes(net)) == {torch.float32}
    assert torch.equal(Interpreter(net)(X)[0], POOLED(eager(X), 2).bfloat16())


def test_a_value_that_grows_from_itself_is_written_once() -> None:
    net = Network()
    value = cast(net, net.input("wide", torch.float32, SHAPE), torch.bfloat16)
    for _ in range(40):
        value = add(net, value, value)
    net.output("pooled", net.add(POOL, value))
    before = len(net.steps)
    pool_unrounded(net)
    assert len(net.steps) == before + 42
    assert pooled_dtypes(net) == [torch.float32]


def test_values_that_no_cast_has_rounded_stay() -> None:
    net = Network()
    plain, wide = net.input("plain", torch.bfloat16, SHAPE), net.input("wide", torch.float32, SHAPE)
    summed = net.add(Reduce(ReduceOp.SUM, (1,), True), cast(net, wide, torch.bfloat16))
    for index, value in enumerate((plain, net.add(RELU, plain), add(net, plain, summed))):
        net.output(f"pooled{index}", net.add(POOL, value))
    before = len(net.steps)
    pool_unrounded(net)
    assert len(net.steps) == before


def test_a_scale_that_becomes_part_of_a_convolution_leaves_nothing_to_widen() -> None:
    net = Network()
    x = net.input("x", torch.bfloat16, SHAPE)
    kernel = net.constant(torch.randn(6, 3, 3, 3, dtype=torch.bfloat16), weight="kernel")
    result = net.add(Convolution((1, 1), (1, 1), (1, 1), (1, 1), 1), x, kernel)
    factor = net.constant(torch.rand(1, 6, 1, 1) + 0.5)
    rounded = net.add(RELU, cast(net, mul(net, cast(net, result, torch.float32), factor), torch.bfloat16))
    net.output("skip", rounded)
    net.output("pooled", net.add(POOL, rounded))
    fold_channel_scales(net)
    pool_unrounded(net)
    assert pooled_dtypes(net) == [torch.bfloat16]
