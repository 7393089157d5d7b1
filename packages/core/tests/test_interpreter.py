"""Running a network: memory, outputs, sizes, threads, broken promises."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from core_programs import Symbols

from torchkiln_core import InternalError, Interpreter, Layer, Network
from torchkiln_core.layers import Activation, ActivationKind, Elementwise, ElementwiseOp, Shuffle, TopK, TopKOp
from torchkiln_core.layers.checks import is_real
from torchkiln_testing import assert_same

RELU, ADD = Activation(ActivationKind.RELU), Elementwise(ElementwiseOp.SUM)


@dataclass(frozen=True, slots=True)
class Probe(Layer):
    """A copy of its operand; notes which earlier operands are still alive."""

    seen: ClassVar[list[weakref.ref[torch.Tensor]]] = []
    alive: ClassVar[list[list[bool]]] = []

    def run(self, input):
        if is_real(input):
            self.alive.append([ref() is not None for ref in self.seen])
            self.seen.append(weakref.ref(input))
        return input.clone()


@pytest.fixture
def probe():
    Probe.seen.clear()
    Probe.alive.clear()
    return Probe()


def test_values_are_freed_after_their_last_use(probe):
    net = Network()
    x = net.input("x", torch.float32, (4,))
    value = net.add(RELU, x)
    for _ in range(3):
        value = net.add(probe, value)
    net.add_many(TopK(TopKOp.MAX, 1, 0), value)  # nobody reads these
    last = net.add(probe, value)
    net.output("y", last)
    given = torch.ones(4)
    assert_same((torch.ones(4),), Interpreter(net)(given))
    assert Probe.alive == [[], [False], [False, False], [False, False, False]]
    assert [ref() for ref in Probe.seen] == [None] * 4


def test_a_value_read_twice_lives_until_the_second(probe):
    net = Network()
    first = net.add(RELU, net.input("x", torch.float32, (4,)))
    second = net.add(probe, first)
    third = net.add(probe, second)
    net.output("y", net.add(ADD, first, third))
    assert_same((torch.full((4,), 2.0),), Interpreter(net)(torch.ones(4)))
    assert Probe.alive == [[], [True]]


def test_outputs_may_repeat_and_may_be_inputs_or_constants():
    net = Network()
    x, unused = net.input("x", torch.float32, (2,)), net.input("unused", torch.int64, (1,))
    weight = torch.tensor([1.0, 2.0])
    constant = net.constant(weight)
    total = net.add(ADD, x, constant)
    after = net.add(RELU, total)
    for name, value in (("a", total), ("b", x), ("c", constant), ("d", total), ("e", unused), ("f", after)):
        net.output(name, value)
    given, other = torch.tensor([-5.0, 1.0]), torch.tensor([3])
    run = Interpreter(net)
    for _ in range(2):
        a, b, c, d, e, f = run(given, other)
        assert a is d
        assert b is given
        assert e is other
        assert c.data_ptr() == weight.data_ptr()
        assert_same((torch.tensor([-4.0, 3.0]), torch.tensor([0.0, 3.0])), (a, f))


def test_no_gradient_is_recorded():
    net = Network()
    net.output("y", net.add(ADD, net.input("x", torch.float32, (2,)), net.constant(torch.nn.Parameter(torch.ones(2)))))
    [y] = Interpreter(net)(torch.ones(2, requires_grad=True))
    assert not y.requires_grad


def test_a_network_without_inputs_runs():
    net = Network()
    net.output("y", net.add(RELU, net.constant(torch.tensor([-1.0, 1.0]))))
    assert_same((torch.tensor([0.0, 1.0]),), Interpreter(net)())


@dataclass(frozen=True, slots=True)
class Liar(Layer):
    """Infers one thing and computes another."""

    dtype: torch.dtype
    rank: int

    def run(self, input):
        return input.to(self.dtype).reshape([-1] * self.rank or []) if is_real(input) else input.new_empty(input.shape)


@pytest.mark.parametrize("layer", [Liar(torch.float16, 1), Liar(torch.float32, 0)], ids=["dtype", "rank"])
def test_a_broken_promise_names_the_layer(layer):
    net = Network()
    with net.scope("op", "m.py:5"):
        net.output("y", net.add(layer, net.input("x", torch.float32, (1,))))
    with pytest.raises(InternalError, match=r"expected %op/Liar: float32\[1\], got torch.float") as caught:
        Interpreter(net)(torch.ones(1))
    assert (caught.value.layer, caught.value.where) == ("op/Liar", "m.py:5")


def test_the_number_of_inputs_is_checked():
    net = Network()
    net.output("y", net.input("x", torch.float32, (1,)))
    with pytest.raises(InternalError, match="expected 1 inputs, got 2"):
        Interpreter(net)(torch.ones(1), torch.ones(1))


def test_threads_share_one_interpreter():
    symbols = Symbols({"n": 5, "m": 4})
    net = symbols.network()
    x = net.input("x", torch.float32, (symbols.ints["n"], symbols.ints["m"]))
    flat = net.add(Shuffle(), net.add(ADD, x, net.constant(torch.ones(1, 1))), net.size_tensor((symbols.size("n*m"),)))
    net.output("y", flat)
    run = Interpreter(net)

    def call(index):
        given = torch.full((index % 5 + 2, index % 3 + 2), float(index))
        return torch.equal(run(given)[0], (given + 1).flatten())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(200)))
    assert len(run._constants) == 1


def test_the_first_copy_of_the_constants_is_everybodys():
    net = Network()
    net.output("y", net.constant(torch.ones(2, dtype=torch.float64)))
    run = Interpreter(net)
    device = torch.device("meta")  # any device that makes a copy
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: run._constants_on(device), range(32)))
    assert all(item is found[0] for item in found)
