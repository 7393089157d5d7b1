"""Parts of tensors of fixed shapes are kept apart where they are broadcast, and such networks build."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from torchkiln_core import BuildOptions, Network, Size, Value
from torchkiln_core.layers import (
    Activation,
    ActivationKind,
    Cast,
    Concatenation,
    Elementwise,
    ElementwiseOp,
    Gather,
    GatherMode,
    MatrixMultiply,
    Reduce,
    ReduceOp,
    Select,
    Shuffle,
    Slice,
)
from torchkiln_runtime import TensorRTBuilder, require_library
from torchkiln_runtime.adapter import Definition, Replay

Write = Callable[[Network, Value], Value]


def column(net: Network, x: Value, start: int = 0) -> Value:
    return window(net, x, start, 1)


def window(net: Network, x: Value, start: int, columns: int) -> Value:
    sizes = (x.shape[0], columns)
    if isinstance(x.shape[0], int):
        return net.add(Slice((0, start), (x.shape[0], columns), (1, 1)), x)
    return net.add(Slice((0, start), None, (1, 1)), x, None, net.size_tensor(sizes))


def difference(net: Network, x: Value, part: Value) -> Value:
    return net.add(Elementwise(ElementwiseOp.SUB), x, part)


def row(net: Network, x: Value) -> Value:
    return net.add(Slice((0, 0), (1, 4), (1, 1)), x)


def of_rows(net: Network, x: Value) -> Value:
    return difference(net, x, net.add(Shuffle(None, (1, 4), None), row(net, x)))


def gathered(net: Network, x: Value) -> Value:
    return net.add(Shuffle(None, (64, 1), None), net.add(Gather(GatherMode.DEFAULT, 1, 0), x, net.constant(torch.tensor(0), "index")))


def chosen(net: Network, x: Value) -> Value:
    condition = net.add(Elementwise(ElementwiseOp.GREATER), x, column(net, x))
    return net.add(Select(), condition, x, column(net, x))


def conditions(net: Network, x: Value) -> Value:
    positive = net.add(Elementwise(ElementwiseOp.GREATER), x, difference(net, x, x))
    return net.add(Cast(x.dtype), net.add(Elementwise(ElementwiseOp.XOR), positive, column(net, positive)))


def spread(net: Network, x: Value) -> Value:
    return net.add(MatrixMultiply(), column(net, x), net.constant(torch.ones(1, 4, dtype=x.dtype), "ones"))


APART: dict[str, tuple[Write, int]] = {
    "difference": (lambda net, x: difference(net, x, column(net, x)), 1),
    "another column": (lambda net, x: difference(net, x, column(net, x, 2)), 1),
    "activated": (lambda net, x: difference(net, x, net.add(Activation(ActivationKind.TANH), column(net, x))), 1),
    "row": (of_rows, 1),
    "gathered": (lambda net, x: difference(net, x, gathered(net, x)), 1),
    "chosen": (chosen, 3),
    "conditions": (conditions, 1),
    "joined": (lambda net, x: difference(net, x, net.add(Concatenation(1), *[column(net, x)] * 4)), 4),
    "by a row of ones": (spread, 1),
}
TOGETHER: dict[str, Write] = {
    "whole": lambda net, x: difference(net, x, window(net, x, 0, 4)),
    "not broadcast": lambda net, x: difference(net, window(net, x, 0, 2), window(net, x, 2, 2)),
    "mean": lambda net, x: difference(net, x, net.add(Reduce(ReduceOp.AVG, (0,), True), x)),
    "bias": lambda net, x: difference(net, x, net.constant(torch.ones(1, 4, dtype=x.dtype), "bias")),
    "part of a constant": lambda net, x: difference(net, x, column(net, net.constant(torch.rand(64, 4, dtype=x.dtype), "table"))),
    "two columns joined": lambda net, x: net.add(Concatenation(1), column(net, x), column(net, x, 1)),
    "joined with all": lambda net, x: net.add(Concatenation(1), column(net, x), x),
}


def network(write: Write, dtype: torch.dtype, shape: tuple[Size, ...], net: Network) -> Network:
    with net.scope("layer", "model.py:7"):
        net.output("y", net.add(Reduce(ReduceOp.SUM, (0,), False), write(net, net.input("x", dtype, shape))))
    return net


def layers(net: Network) -> list[tuple[str, str]]:
    """Type and name of TensorRT's layers."""
    library = require_library("tensorrt_rtx")
    definition = Definition(library, library.module.Builder(library.logger).create_network(0))
    with library.messages.collect("torchkiln.build") as log:
        Replay(definition, net, log).write()
    written = [definition.network.get_layer(index) for index in range(definition.network.num_layers)]
    return [(layer.type.name, layer.name) for layer in written]


def selections(net: Network) -> int:
    """Selections among TensorRT's layers."""
    return sum(kind == "SELECT" for kind, _ in layers(net))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", APART)
def test_a_part_that_is_broadcast_is_kept_apart(ahead: BuildOptions, name: str, dtype: torch.dtype) -> None:
    write, count = APART[name]
    net = network(write, dtype, (64, 4), Network())
    assert selections(net) == count
    assert all(name.startswith(("layer/", "input_", "output_")) for kind, name in layers(net) if kind == "SELECT")
    assert TensorRTBuilder(ahead).build(net).outputs[0].dtype == dtype


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_so_are_integers(ahead: BuildOptions, dtype: torch.dtype) -> None:
    net = network(APART["difference"][0], dtype, (64, 4), Network())
    assert selections(net) == 1
    assert TensorRTBuilder(ahead).build(net).outputs[0].dtype == dtype


@pytest.mark.parametrize("name", TOGETHER)
def test_others_are_not(ahead: BuildOptions, name: str) -> None:
    net = network(TOGETHER[name], torch.float32, (64, 4), Network())
    assert selections(net) == 0
    assert TensorRTBuilder(ahead).build(net).outputs[0].dtype == torch.float32


def test_sizes_are_not(ahead: BuildOptions, make_dynamic: Callable[..., tuple[Network, torch.SymInt]]) -> None:
    net, rows = make_dynamic()
    net.input("x", torch.float32, (rows, 4))
    size = net.size_tensor((rows,))
    net.output("sizes", net.add(Concatenation(0), size, size))
    assert selections(net) == 0
    assert TensorRTBuilder(ahead).build(net).outputs[0].dtype == torch.int64


@pytest.mark.parametrize("name", ["difference", "another column", "activated"])
def test_in_dynamic_shapes_none_is(ahead: BuildOptions, name: str, make_dynamic: Callable[..., tuple[Network, torch.SymInt]]) -> None:
    net, rows = make_dynamic()
    network(APART[name][0], torch.float32, (rows, 4), net)
    assert selections(net) == 0
    assert TensorRTBuilder(ahead).build(net).outputs[0].dtype == torch.float32
