"""When calls are captured; the captures themselves need a GPU."""

from __future__ import annotations

import pytest
import sympy
import torch

from torchkiln_core import Binding
from torchkiln_runtime.inputs import KnownInputs, static_shapes
from torchkiln_runtime.replays import _GRAPHS, _SHAPES, _SIGHTINGS_TO_REPLACE, Replays, ReplaysByShapes
from torchkiln_runtime.results import ResultForm
from torchkiln_runtime.scratch import Scratch, scratch_of

CPU = torch.device("cpu")


@pytest.fixture
def replays() -> Replays:
    return replays_in(Scratch(CPU))


def replays_in(scratch: Scratch) -> Replays:
    def no_context():
        raise AssertionError("no context is made before a capture")

    return Replays(no_context, CPU, scratch)


def test_addresses_are_captured_when_they_come_back(replays):
    assert not replays.wants((1, 2))
    assert not replays.wants((1, 3))
    assert replays.wants((1, 2))
    assert not replays.replay((1, 2))


def test_addresses_that_never_come_back_are_forgotten(replays):
    assert not any(replays.wants((address,)) for address in range(2000))
    assert not replays.wants((0,))


def test_a_full_set_is_replaced_by_what_comes_often_only(replays):
    for address in range(_GRAPHS):
        replays._graphs[(address,)] = object()
    wanted = [replays.wants((-1,)) for _ in range(_SIGHTINGS_TO_REPLACE)]
    assert wanted == [False] * (_SIGHTINGS_TO_REPLACE - 1) + [True]


def test_shapes_have_replays_of_their_own_as_long_as_there_is_room():
    by_shapes = ReplaysByShapes(lambda shapes: replays_in(Scratch(CPU)))
    first = [by_shapes.at(((rows, 2),)) for rows in range(_SHAPES)]
    assert None not in first
    assert len(set(map(id, first))) == _SHAPES
    assert [by_shapes.at(((rows, 2),)) for rows in range(_SHAPES)] == first
    late = ((_SHAPES, 2),)
    assert [by_shapes.at(late) for _ in range(_SIGHTINGS_TO_REPLACE - 1)] == [None] * (_SIGHTINGS_TO_REPLACE - 1)
    # What was used last stays.
    assert by_shapes.at(((0, 2),)) is first[0]
    taken = by_shapes.at(late)
    assert taken is not None
    assert by_shapes.at(late) is taken
    assert by_shapes.at(((0, 2),)) is first[0]
    assert by_shapes.at(((1, 2),)) is None


class Graph:
    replayed = 0

    def replay(self):
        self.replayed += 1


def test_graphs_are_captured_anew_once_the_stream_has_other_scratch_memory():
    scratch, graph = Scratch(CPU), Graph()
    scratch.reserve(64)
    replays = replays_in(scratch)
    replays._workspace, replays._graphs[(1, 2)] = scratch.memory(), graph
    assert replays.replay((1, 2))
    scratch.reserve(32)
    assert replays.replay((1, 2))
    scratch.reserve(128)
    assert not replays.replay((1, 2))
    assert graph.replayed == 2
    assert replays.wants((1, 2)), "expected a capture at once, not another count of sightings"


def test_engines_of_one_stream_share_scratch_memory_while_one_of_them_lives():
    first = scratch_of(CPU, 1)
    assert scratch_of(CPU, 1) is first
    assert scratch_of(CPU, 2) is not first
    first.reserve(64)
    del first
    assert scratch_of(CPU, 1).memory().numel() == 0


def test_known_inputs_refuse_what_needs_a_check_or_a_copy():
    known = KnownInputs.of([Binding("x", torch.float32, (2, 3))], ((2, 3),), torch.device("cuda", 0), ResultForm((), ()))
    for inputs in ((torch.ones(2, 3),), (torch.ones(3, 2),), (torch.ones(2, 3).half(),), ()):
        assert known.addresses(inputs) is None


def test_shapes_are_static_without_symbols():
    assert static_shapes([Binding("x", torch.float32, (2, 3)), Binding("y", torch.bool, ())]) == ((2, 3), ())
    assert static_shapes([Binding("x", torch.float32, (2, sympy.Symbol("s"))), Binding("y", torch.bool, ())]) is None
