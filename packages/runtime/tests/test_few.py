"""Layers that combine a few elements of tensors of fixed shapes are kept apart, and such networks build."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from torchkiln_core import BuildOptions, Network, Size, Value
from torchkiln_core.layers import MatrixMultiply, MatrixOp, Normalization, Reduce, ReduceOp, Softmax
from torchkiln_runtime import TensorRTBuilder, require_library
from torchkiln_runtime.adapter import Definition, Replay

Write = Callable[[Network, Value], Value]


def reduced(op: ReduceOp, keep_dims: bool = True) -> Write:
    return lambda net, x: net.add(Reduce(op, (1,), keep_dims), x)


def softmax(net: Network, x: Value) -> Value:
    return net.add(Softmax(1), x)


def normal(net: Network, x: Value) -> Value:
    scale, bias = (
        net.constant(torch.full((1, x.shape[1]), number, dtype=x.dtype), name) for number, name in ((2.0, "scale"), (1.0, "bias"))
    )
    return net.add(Normalization((1,), 1e-5), x, scale, bias)


def product(net: Network, x: Value) -> Value:
    return net.add(MatrixMultiply(), x, net.constant(torch.ones(x.shape[1], 3, dtype=x.dtype), "matrix"))


def vector_product(net: Network, x: Value) -> Value:
    vector = net.constant(torch.ones(x.shape[1], dtype=x.dtype), "vector")
    return net.add(MatrixMultiply(MatrixOp.NONE, MatrixOp.VECTOR), x, vector)


FLOATING: dict[str, Write] = {
    "sum": reduced(ReduceOp.SUM),
    "sum, dropped": reduced(ReduceOp.SUM, keep_dims=False),
    "mean": reduced(ReduceOp.AVG),
    "softmax": softmax,
    "normalization": normal,
    "product": product,
    "vector product": vector_product,
}


def network(write: Write, dtype: torch.dtype, shape: tuple[Size, ...], net: Network) -> Network:
    with net.scope("layer", "model.py:7"):
        net.output("y", write(net, net.input("x", dtype, shape)))
    return net


def layers(net: Network) -> list[tuple[str, str, str]]:
    """Type, name and place of TensorRT's layers."""
    library = require_library("tensorrt_rtx")
    definition = Definition(library, library.module.Builder(library.logger).create_network(0))
    with library.messages.collect("torchkiln.build") as log:
        Replay(definition, net, log).write()
    written = [definition.network.get_layer(index) for index in range(definition.network.num_layers)]
    return [(layer.type.name, layer.name, layer.metadata) for layer in written]


def selections(net: Network) -> int:
    """Selections among TensorRT's layers."""
    return sum(kind == "SELECT" for kind, _, _ in layers(net))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FLOATING)
def test_few_elements_are_kept_apart(ahead: BuildOptions, name: str, dtype: torch.dtype) -> None:
    net = network(FLOATING[name], dtype, (64, 3), Network())
    assert selections(net) > 0
    assert TensorRTBuilder(ahead).build(net).outputs[0].dtype == dtype


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.PROD, ReduceOp.MAX])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_few_integers_are_kept_apart(ahead: BuildOptions, dtype: torch.dtype, op: ReduceOp) -> None:
    net = network(reduced(op), dtype, (64, 3), Network())
    assert selections(net) == 1
    assert TensorRTBuilder(ahead).build(net).outputs[0].dtype == dtype


def test_few_of_int8_are_kept_apart(ahead: BuildOptions) -> None:
    net = network(reduced(ReduceOp.MAX), torch.int8, (64, 3), Network())
    assert selections(net) == 1
    assert TensorRTBuilder(ahead).build(net).outputs[0].dtype == torch.int8


@pytest.mark.parametrize("name", FLOATING)
def test_all_that_is_written_of_a_layer_has_its_name_and_place(ahead: BuildOptions, name: str) -> None:
    found = layers(network(FLOATING[name], torch.float16, (64, 3), Network()))
    own = [(name, place) for kind, name, place in found if kind != "CONSTANT" or name.startswith("layer/")]
    assert len({name for name, _ in own}) == len(own) > 2
    assert all(name.startswith("layer/") and place == "model.py:7" for name, place in own)


@pytest.mark.parametrize("size", [1, 9])
@pytest.mark.parametrize("name", FLOATING)
def test_one_element_and_many_are_not(ahead: BuildOptions, name: str, size: int) -> None:
    assert selections(network(FLOATING[name], torch.float32, (64, size), Network())) == 0


@pytest.mark.parametrize("name", FLOATING)
def test_in_dynamic_shapes_none_are(ahead: BuildOptions, name: str, make_dynamic: Callable[..., tuple[Network, torch.SymInt]]) -> None:
    net, rows = make_dynamic()
    assert selections(network(FLOATING[name], torch.float32, (rows, 3), net)) == 0


def test_wide_products_are_not(ahead: BuildOptions) -> None:
    def wide(net: Network, x: Value) -> Value:
        return net.add(MatrixMultiply(), x, net.constant(torch.ones(3, 65), "matrix"))

    assert selections(network(wide, torch.float32, (65, 3), Network())) == 0
