"""Records and keys of networks whose layers own bodies."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from core_bodies import F32, cumulative, ew, looped, nested, scalar, total
from core_programs import Symbols

from torchkiln_core import Interpreter, Network, PlanFormatError, from_record, network_key, to_record
from torchkiln_testing import assert_same


def scan() -> Network:
    symbols = Symbols({"n": 5, "m": 4})
    net = symbols.network()
    x = net.input("x", F32, (symbols.ints["n"], symbols.ints["m"]))
    for value in cumulative(net, x, net.input("initial", F32, (symbols.ints["m"],))):
        net.output("y", value)
    return net


def conditional_loop() -> Network:
    net = Network()
    x = net.input("x", F32, (2,))
    layer = looped(
        net,
        (x,),
        (),
        lambda body, x: ew(body, "SUM", x, x),
        lambda body, x: ew(body, "LESS", total(body, x), scalar(body, 50.0, F32)),
    )
    net.output("y", net.add(layer, None, None, x))
    return net


NETWORKS = {"nested": lambda: nested(torch.full((1, 1), 2.0)), "scan": scan, "while": conditional_loop}
INPUTS = {
    "nested": (torch.full((2, 3), 0.5),),
    "scan": (torch.arange(6.0).reshape(3, 2), torch.ones(2)),
    "while": (torch.tensor([1.0, 2.0]),),
}


@pytest.fixture(params=NETWORKS)
def name(request):
    return request.param


def test_bodies_read_back(name):
    net = NETWORKS[name]()
    record, tensors = to_record(net)
    data = json.loads(json.dumps(record))
    again = from_record(data, tensors)
    assert data == record == to_record(again)[0]
    assert str(again) == str(net)
    assert network_key(again, {}) == network_key(net, {})
    assert_same(Interpreter(net)(*INPUTS[name]), Interpreter(again)(*INPUTS[name]))
    assert all(step.layer.bodies().keys() for step in again.steps if step.layer.kind() in ("Loop", "IfConditional"))


def test_weights_in_bodies_are_held_by_reference():
    weight = torch.nn.Parameter(torch.ones(1, 1))
    record, tensors = to_record(nested(weight))
    assert [tensor is weight for tensor in tensors.values()] == [False, False, True]
    again = from_record(record, tensors)
    steps = [step for step in again.all_steps() if step.weight == "w"]
    assert [step.outputs[0].constant is weight for step in steps] == [True]


def test_ranges_are_shared_with_bodies():
    again = from_record(*to_record(scan()))
    (body,) = (body for step in again.steps for body in step.layer.bodies().values())
    assert body.dims is again.dims
    assert len(body.dims) == 2


def test_the_key_covers_bodies():
    base = network_key(nested(torch.ones(1, 1)), {})
    assert network_key(nested(torch.ones(1, 1).clone(), label="other"), {}) == base
    changed = [nested(torch.zeros(1, 1)), nested(torch.ones(1, 1), "SUB"), nested(torch.ones(1, 1), limit=9.0)]
    assert len({base, *(network_key(net, {}) for net in changed)}) == 4


def test_the_key_does_not_see_names_in_bodies():
    def key(hints):
        symbols = Symbols(hints)
        net = symbols.network()
        n, m = (symbols.ints[label] for label in ("n", "m"))
        x = net.input("x", F32, (n, m))
        for value in cumulative(net, x, net.input("initial", F32, (m,))):
            net.output("y", value)
        return network_key(net, {})

    assert key({"n": 5, "m": 4}) == key({"m": 9, "n": 7})


def _paths(data, path=()):
    yield path
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, item in items:
        yield from _paths(item, (*path, key))


@pytest.mark.parametrize("value", [None, -1, 3, "x", [], {}, [{}], True, 1.5], ids=str)
def test_any_value_replaced_is_read_or_refused(name, value):
    """A record with another value may still be a network; what must not happen is another exception."""
    record, tensors = to_record(NETWORKS[name]())
    refused = 0
    paths = list(_paths(record))[1:]
    for path in paths:
        data = copy.deepcopy(record)
        place = data
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        try:
            from_record(data, tensors)
        except PlanFormatError:
            refused += 1
    assert refused > len(paths) / 3


def _loop(data):
    return next(step for step in data["steps"] if step["layer"] == "Loop")


def _drop_body_input(data):
    _loop(data)["attributes"]["body"]["network"]["inputs"].pop()


def _drop_operand(data):
    _loop(data)["inputs"].pop()


def _other_dtype(data):
    data["inputs"][0]["dtype"] = "float16"


def _other_rank(data):
    _loop(data)["attributes"]["body"]["network"]["inputs"][0]["shape"].append(1)


def _extra_output(data):
    body = _loop(data)["attributes"]["body"]["network"]
    body["outputs"] += [body["outputs"][0]] * 9


def _no_network(data):
    _loop(data)["attributes"]["body"] = {}


def _outer_value(data):
    _loop(data)["attributes"]["body"]["network"]["steps"][0]["inputs"][0] = data["inputs"][0]["name"] + "?"


def _deep(data):
    inner = data
    for _ in range(3000):
        inner = {"dims": {}, "inputs": [], "outputs": [], "steps": [{"layer": "Loop", "attributes": {"body": {"network": inner}}}]}
    data |= inner


@pytest.mark.parametrize(
    "change",
    [_drop_body_input, _drop_operand, _other_dtype, _other_rank, _extra_output, _no_network, _outer_value, _deep],
    ids=lambda change: change.__name__,
)
def test_bodies_that_do_not_fit_are_refused(name, change):
    record, tensors = to_record(NETWORKS[name]())
    data = json.loads(json.dumps(record))
    change(data)
    with pytest.raises(PlanFormatError, match="network record"):
        from_record(data, tensors)
