"""Networks whose layers own bodies, in files."""

from __future__ import annotations

import copy
import dataclasses
import json
import zipfile

import pytest
import torch

from torchkiln_core import Interpreter, Network, PlanFormatError, network_key
from torchkiln_core.layers import Elementwise, ElementwiseOp, IfConditional, Loop, Unary, UnaryOp, operand_input, recurrence_input
from torchkiln_runtime.kiln_file import load_program, save_program
from torchkiln_runtime.kiln_file.archive_writer import ArchiveWriter


def make_network(weight):
    """Three trips of ``x * weight`` where ``p``, else of ``-x``."""
    net = Network()
    x, p = net.input("x", torch.float32, (4,)), net.input("p", torch.bool, ())
    body = net.body("body")
    state, flag = recurrence_input(body, "state", x), operand_input(body, "p", p)
    then, otherwise = body.body("then"), body.body("otherwise")
    then.output("y", then.add(Elementwise(ElementwiseOp.PROD), operand_input(then, "x", state), then.constant(weight, "scale")))
    otherwise.output("y", otherwise.add(Unary(UnaryOp.NEG), operand_input(otherwise, "x", state)))
    body.output("next", body.add(IfConditional(then, otherwise), flag, state))
    net.output("y", net.add(Loop(body), None, net.size_tensor((3,)), x, p))
    return net


@pytest.fixture
def with_bodies(program):
    """The saved program, with a network that has bodies whose weight is a weight of the program."""
    weight = program.weights["layer.weight"].detach().nan_to_num(nan=2.0)
    engine, kept = program.segments
    return dataclasses.replace(
        program,
        segments=(dataclasses.replace(engine, network=make_network(weight)), kept),
        weights=program.weights | {"scale": weight},
    )


def test_bodies_come_back_with_their_weights(with_bodies, through_file):
    before = with_bodies.segments[0].network
    loaded = through_file(with_bodies)
    network = loaded.segments[0].network
    assert str(network) == str(before)
    assert network_key(network, {}) == network_key(before, {})
    x = torch.tensor([1.0, -1.0, 2.0, 0.5])
    for flag in (True, False):
        (expected,) = Interpreter(before)(x, torch.tensor(flag))
        assert torch.equal(Interpreter(network)(x, torch.tensor(flag))[0], expected)
    (held,) = (step.outputs[0].constant for step in network.all_steps() if step.weight == "scale")
    assert held.data_ptr() == loaded.weights["scale"].data_ptr()


@pytest.mark.parametrize("value", [None, -1, "x", [], {}, True], ids="null number text list object true".split())
def test_any_value_of_a_body_replaced_is_loaded_or_refused(with_bodies, tmp_path, value):
    path = tmp_path / "bodies.kiln"
    save_program(with_bodies, path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist() if name != "manifest.json"}
    content = json.loads(members["program.json"])
    root = ("program", "segments", 0, "network", "record", "steps")
    steps = content["program"]["segments"][0]["network"]["record"]["steps"]
    refused = 0
    places = list(_paths(steps))[1:][::3]
    for place in places:
        changed = copy.deepcopy(content)
        target = changed
        for key in (*root, *place[:-1]):
            target = target[key]
        target[place[-1]] = value
        with open(path, "w+b") as file:
            writer = ArchiveWriter(file)
            for name, data in (members | {"program.json": json.dumps(changed).encode()}).items():
                with writer.member(name) as member:
                    member.write(data)
            writer.finish()
        try:
            load_program(path)
        except PlanFormatError:
            refused += 1
    assert refused > len(places) / 3


def _paths(data, path=()):
    yield path
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, item in items:
        yield from _paths(item, (*path, key))
