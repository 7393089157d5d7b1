"""Sizes that the network computes at run time from the shapes of its inputs."""

from __future__ import annotations

import pytest
import torch
from core_programs import Symbols, exported, fake_inputs, network_over
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.export import Dim

from torchkiln_core import InternalError, Interpreter
from torchkiln_core.layers import Linspace, Shuffle
from torchkiln_core.shape_tensor import has_layers
from torchkiln_core.size import evaluate, size_of

VALUES = [{"n": 5, "m": 4}, {"n": 2, "m": 9}, {"n": 13, "m": 3}]


def _computed(texts, values):
    """What the network computes, and the values of the expressions."""
    symbols = Symbols({"n": 5, "m": 4})
    net = symbols.network()
    net.input("x", torch.int8, (symbols.ints["n"], symbols.ints["m"]))
    sizes = tuple(symbols.size(text) for text in texts)
    value = net.size_tensor(sizes)
    assert (value.dtype, value.shape, value.sizes) == (torch.int64, (len(texts),), sizes)
    assert all(map(has_layers, sizes))
    net.output("sizes", value)
    got = [Interpreter(net)(torch.zeros(at["n"], at["m"], dtype=torch.int8))[0].tolist() for at in values]
    return got, [[evaluate(size, symbols.values(at)) for size in sizes] for at in values]


@pytest.mark.parametrize(
    "text",
    [
        "n",
        "7",
        "n + m",
        "n - m",
        "3*n",
        "-n",
        "n*m",
        "n*n",
        "n*n*m + 2",
        "n//3",
        "(n - m)//2",
        "n % 3",
        "(n - m) % 4",
        "max(n, m)",
        "min(n, m, 4)",
        "max(n - 6, 0)",
        "2*((n + 1)//2) + m % 2",
    ],
)
def test_a_size(text):
    got, expected = _computed([text], VALUES)
    assert got == expected


def test_several_sizes_and_none():
    got, expected = _computed(["n", 3, "n*m", "m"], VALUES)
    assert got == expected
    assert _computed([2, 3], VALUES)[0] == [[2, 3]] * 3
    assert _computed([], VALUES)[0] == [[]] * 3


LEAVES = st.sampled_from(["n", "m", "1", "3", "7"])
TEXTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda parts: f"({' '.join(parts)})"),
        st.tuples(inner, st.sampled_from(["//", "%"]), st.sampled_from("2357")).map(lambda parts: f"({' '.join(parts)})"),
        st.tuples(st.sampled_from(["max", "min"]), inner, inner).map(lambda parts: f"{parts[0]}({parts[1]}, {parts[2]})"),
    ),
    max_leaves=5,
)


@settings(max_examples=40, deadline=None)
@given(TEXTS)
def test_any_size(text):
    got, expected = _computed([text], VALUES)
    assert got == expected


class Double(torch.nn.Module):
    def forward(self, x, y):
        return x + y


@pytest.mark.parametrize(
    ("dim", "extent", "tried"),
    [(lambda dim: 2 * dim, 8, 12), (lambda dim: 3 * dim - 1, 11, 20), (lambda dim: dim + 4, 8, 9)],
    ids=["2*s", "3*s - 1", "s + 4"],
)
def test_a_symbol_that_stands_in_derived_dimensions_only(dim, extent, tried):
    base = Dim("base", min=1, max=16)
    program = exported(Double(), (torch.randn(extent, 2),) * 2, ({0: dim(base)}, {0: dim(base)}))
    net = network_over(*fake_inputs(program))
    [symbol] = net.inputs[0].shape[0].free_symbols
    sizes = (symbol, net.inputs[0].shape[0], symbol * 5 + 1)
    net.output("sizes", net.size_tensor(sizes))
    assert not any(value.shape[0].is_Symbol for value in net.inputs)
    solved = next(value for value in range(50) if evaluate(net.inputs[0].shape[0], {symbol.name: value}) == tried)
    [got] = Interpreter(net)(torch.zeros(tried, 2), torch.zeros(tried, 2))
    assert got.tolist() == [solved, tried, solved * 5 + 1]


def test_a_symbol_that_nothing_determines():
    symbols = Symbols({"n": 5, "m": 4})
    net = symbols.network()
    net.input("x", torch.float32, (symbols.ints["n"] // 2, symbols.ints["n"] + symbols.ints["m"]))
    with (
        net.scope("view", "m.py:2"),
        pytest.raises(InternalError, match=r"no input of the network has a dimension that determines it; inputs: %x") as caught,
    ):
        net.size_tensor((symbols.size("n"),))
    assert (caught.value.layer, caught.value.where) == ("view", "m.py:2")
    assert net.size_tensor((symbols.size("n + m"), symbols.size("n//2"))).shape == (2,)
    half = symbols.size("n") / 3
    with pytest.raises(InternalError, match="has no layers"):
        net.size_tensor((half,))


@pytest.mark.parametrize("text", ["m//2", "3*(m//2) + 2", "n*(m//2 + 1)", "2*n*k*(m//2)", "n*k*(m//2) + n*k", "max(n*k*(m//2), 4)"])
def test_a_part_is_read_where_its_symbol_is_not_known(text):
    symbols = Symbols({"n": 5, "m": 4, "k": 2})
    net = symbols.network()
    net.input("x", torch.int8, (symbols.ints["n"] * symbols.ints["k"], symbols.ints["m"] // 2 + 1, symbols.ints["n"]))
    size = symbols.size(text)
    net.output("sizes", net.size_tensor((size,)))
    for at in ({"n": 5, "m": 4, "k": 2}, {"n": 3, "m": 7, "k": 5}):
        [got] = Interpreter(net)(torch.zeros(at["n"] * at["k"], at["m"] // 2 + 1, at["n"], dtype=torch.int8))
        assert got.tolist() == [evaluate(size, symbols.values(at))]


@pytest.mark.parametrize("text", ["8*n*m", "2*n*m - 1", "n*m + 3", "n*m*k", "max(6*n*m, 2)", "(2*n*m + k)//3"])
def test_a_product_is_reached_from_a_multiple_of_it(text):
    symbols = Symbols({"n": 5, "m": 4, "k": 2})
    net = symbols.network()
    product = symbols.ints["n"] * symbols.ints["m"]
    net.input("x", torch.int8, (4 * product + 2, symbols.ints["k"]))
    size = symbols.size(text)
    net.output("sizes", net.size_tensor((size,)))
    for at in ({"n": 5, "m": 4, "k": 2}, {"n": 3, "m": 7, "k": 5}):
        [got] = Interpreter(net)(torch.zeros(4 * at["n"] * at["m"] + 2, at["k"], dtype=torch.int8))
        assert got.tolist() == [evaluate(size, symbols.values(at))]


def test_sizes_feed_layers():
    symbols = Symbols({"n": 5, "m": 4})
    net = symbols.network()
    x = net.input("x", torch.float32, (symbols.ints["n"], symbols.ints["m"]))
    flat = net.add(Shuffle(), x, net.size_tensor((symbols.size("n*m"),)))
    count = net.add(Linspace(0, 1, torch.int64), net.size_tensor((size_of(symbols.ints["n"] * 2),)))
    assert flat.shape == (symbols.size("n*m"),)
    assert count.shape == (symbols.size("2*n"),)
    net.output("flat", flat)
    net.output("count", count)
    flat_tensor, count_tensor = Interpreter(net)(torch.ones(3, 7))
    assert flat_tensor.shape == (21,)
    assert count_tensor.tolist() == list(range(6))


def test_sizes_that_floating_point_rounds_have_no_layers():
    class Stretch(torch.nn.Module):
        def forward(self, x):
            return x.new_zeros(torch.sym_int(x.shape[0] * 1.5))

    program = torch.export.export(Stretch(), (torch.ones(8),), dynamic_shapes=({0: Dim("n", min=4, max=64)},))
    (made,) = [node.meta["val"] for node in program.graph.nodes if node.target is torch.ops.aten.new_zeros.default]
    net = network_over(*fake_inputs(program))
    assert not has_layers(size_of(made.shape[0]))
    with pytest.raises(InternalError, match="has no layers"):
        net.size_tensor((size_of(made.shape[0]),))
