"""Writing a network: names, operands, sizes, and what it says when it refuses."""

from __future__ import annotations

import pytest
import torch
from core_programs import Symbols, exported, fake_inputs, network_over
from torch.export import Dim

from torchkiln_core import DimRange, InternalError, Network, TensorSpec, from_record, to_record
from torchkiln_core.layers import Activation, ActivationKind, Elementwise, ElementwiseOp, Shuffle, TopK, TopKOp
from torchkiln_core.size import size_of

RELU = Activation(ActivationKind.RELU)


class Add(torch.nn.Module):
    def forward(self, x, y):
        return x + y


@pytest.fixture(scope="module")
def fakes():
    batch, length = Dim("batch", min=2, max=16), Dim("length", min=3, max=32)
    args = (torch.randn(4, 5, 3), torch.randn(4, 1, 3))
    return fake_inputs(exported(Add(), args, ({0: batch, 1: length}, {0: batch})))


@pytest.fixture
def net(fakes):
    batch, length = (str(size_of(size)) for size in fakes[0].shape[:2])
    return network_over(*fakes, dims={batch: DimRange(batch, 2, 4, 16), length: DimRange(length, 3, 5, 32)})


def test_names_come_from_the_scope_and_are_unique():
    net = Network()
    first = net.input("x", torch.float32, (2,))
    second = net.input("x_1", torch.float32, (2,))
    third = net.input("x", torch.float32, (2,))
    with net.scope("relu_3", "m.py:4"):
        inner = [net.add(RELU, first), net.add(RELU, second)]
        with net.scope("relu_4"):
            inner.append(net.add(RELU, third))
        inner.append(net.add(RELU, third))
    outer = net.add(RELU, first)
    pair = net.add_many(TopK(TopKOp.MAX, 1, 0), first)
    names = [value.name for value in (first, second, third, *inner, outer, *pair)]
    assert names[3:7] == ["relu_3/Activation", "relu_3/Activation_1", "relu_4/Activation", "relu_3/Activation_2"]
    assert names[7:] == ["net/Activation", "net/TopK:0", "net/TopK:1"]
    assert len(set(names)) == len(names)
    assert [step.where for step in net.steps] == ["m.py:4", "m.py:4", None, "m.py:4", None, None]


def test_the_scope_ends_with_an_error():
    net = Network()
    with pytest.raises(KeyError), net.scope("a", "b"):
        raise KeyError
    assert net.add(RELU, net.input("x", torch.float32, (1,))).name == "net/Activation"


def test_add_wants_one_output():
    net = Network()
    x = net.input("x", torch.float32, (3,))
    with net.scope("topk", "m.py:1"), pytest.raises(InternalError, match="TopK: expected one output, got 2") as caught:
        net.add(TopK(TopKOp.MAX, 1, 0), x)
    assert (caught.value.layer, caught.value.where) == ("topk", "m.py:1")


def test_a_value_says_what_it_is(net):
    x, y = net.inputs
    batch, length = x.shape[:2]
    total = net.add(Elementwise(ElementwiseOp.SUM), x, y)
    assert total.shape == (batch, length, 3)
    assert (total.rank, total.is_static, x.is_static) == (3, False, False)
    assert repr(total) == f"%net/Elementwise: float32[{batch}, {length}, 3]"
    net.output("sum", total)
    assert str(net).splitlines() == [
        f"input %x0: float32[{batch}, {length}, 3]",
        f"input %x1: float32[{batch}, 1, 3]",
        f"%net/Elementwise: float32[{batch}, {length}, 3] = Elementwise(op=<ElementwiseOp.SUM: 'SUM'>)(%x0, %x1)",
        "output sum = %net/Elementwise",
    ]


def test_specs(net):
    batch, length = (str(size) for size in net.inputs[0].shape[:2])
    assert net.specs() == (
        TensorSpec("x0", torch.float32, (DimRange(batch, 2, 4, 16), DimRange(length, 3, 5, 32), 3)),
        TensorSpec("x1", torch.float32, (DimRange(batch, 2, 4, 16), 1, 3)),
    )
    assert net.dim(7) == 7


def test_a_number_divided_by_a_size_has_a_range_without_0():
    symbols = Symbols({"n": 5})
    net = symbols.network()
    n = str(symbols.size("n"))
    net.dims = {n: DimRange(n, 0, 0, 8)}
    dim = net.dim(symbols.size("64//n"))
    assert (dim.min, dim.opt, dim.max) == (8, 64, 64)
    with pytest.raises(InternalError, match="no bounds"):
        net.dim(symbols.size("64//(n - 1)"))


def test_the_range_of_an_expression():
    symbols = Symbols({"n": 5, "m": 4})
    net = symbols.network()
    n, m = str(symbols.size("n")), str(symbols.size("m"))
    net.dims = {n: DimRange(n, 2, 5, 10), m: DimRange(m, 1, 4, 8)}
    ranges = {text: net.dim(symbols.size(text)) for text in ("2*n", "n + 3", "(n + 1)//2", "n*m", "n - 4", "max(n, m)")}
    assert {text: (dim.min, dim.opt, dim.max) for text, dim in ranges.items()} == {
        "2*n": (4, 10, 20),
        "n + 3": (5, 8, 13),
        "(n + 1)//2": (1, 3, 5),
        "n*m": (2, 20, 80),
        "n - 4": (0, 1, 6),
        "max(n, m)": (2, 5, 10),
    }
    assert ranges["2*n"].symbol == f"2*{n}"
    net.dims.pop(m)
    with pytest.raises(InternalError, match=f"no range for {m}"):
        net.dim(symbols.size("n*m"))


def test_symbols_need_a_shape_environment():
    symbols = Symbols({"n": 5})
    with pytest.raises(InternalError, match="without a shape environment"):
        Network().symbolic_int(symbols.size("n"))
    assert Network().symbolic_int(3) == 3


def test_a_network_from_a_record_takes_no_layers(net):
    net.output("y", net.add(RELU, net.inputs[0]))
    record, tensors = to_record(net)
    again = from_record(record, tensors)
    with again.scope("late", "m.py:2"), pytest.raises(InternalError, match="takes no further layers") as caught:
        again.add(RELU, again.inputs[0])
    assert caught.value.layer == "late/Activation"
    assert caught.value.where == "m.py:2"


def test_a_layer_that_would_specialise_is_refused(net):
    x, y = net.inputs
    env = net.fake_mode.shape_env
    before = len(env.guards), dict(env.replacements), len(env.deferred_runtime_asserts)
    with net.scope("add", "m.py:3"), pytest.raises(InternalError, match=r"Elementwise.* does not take .*%x0") as caught:
        net.add(Elementwise(ElementwiseOp.SUM), net.add(Shuffle(first=(1, 0, 2)), x), x)
    assert (caught.value.layer, caught.value.where) == ("add/Elementwise", "m.py:3")
    assert (len(env.guards), dict(env.replacements), len(env.deferred_runtime_asserts)) == before
    assert net.add(Elementwise(ElementwiseOp.SUM), x, y).shape == x.shape
