"""Whole programs: what is divided how, and that the stitched graph still computes the program."""

from itertools import pairwise

import pytest
import torch

from torchkiln_core.options import PartitionOptions
from torchkiln_core.rejection import Rejection
from torchkiln_partitioning import LevelPartitioner, divide

ANY_SIZE = PartitionOptions(min_block_size=1)


def classic(x, y, z):
    return torch.cat([torch.lgamma(x + y), torch.lgamma(x * z), torch.lgamma(y / z)])


def test_classic_example_has_three_segments(capture, oracle, check, kinds):
    args = tuple(torch.rand(3, 4) + 1 for _ in range(3))
    program = capture(classic, args)
    # Cutting wherever the kind changes in the order of the graph would give seven.
    in_order = ["lgamma" in node.name for node in program.module.graph.nodes if node.op == "call_function"]
    assert 1 + sum(here != before for before, here in pairwise(in_order)) == 7
    partition = LevelPartitioner(ANY_SIZE).partition(program, oracle("lgamma"))
    assert kinds(partition) == ["engine", "torch", "engine"]
    assert partition.segments[0].calls == ("aten.add.Tensor", "aten.mul.Tensor", "aten.div.Tensor")
    assert partition.segments[2].calls == ("aten.cat.default",)
    assert [item.rule for item in partition.rejections] == ["no-converter"] * 3
    check(partition, *args)


def test_small_engines_run_in_pytorch(capture, oracle, check, kinds):
    args = tuple(torch.rand(3, 4) + 1 for _ in range(3))
    partition = LevelPartitioner().partition(capture(classic, args), oracle("lgamma"))
    assert kinds(partition) == ["torch"]
    assert sorted(item.rule for item in partition.rejections) == ["min-block-size"] * 4 + ["no-converter"] * 3
    check(partition, *args)


def test_small_engines_merge_in_place_when_dividing_anew_does_not_help(capture, oracle, check, kinds, monkeypatch):
    def function(x):
        x = torch.lgamma(x.sin().cos().sin()).tanh()
        return torch.lgamma(x).sin().cos()

    real = divide.divide
    monkeypatch.setattr(
        divide, "divide", lambda placement: real(placement) if not placement_has_minimum(placement) else scattered(placement)
    )

    def placement_has_minimum(placement):
        return any(item.rule == "min-block-size" for item in placement.rejections.values())

    def scattered(placement):
        return divide.Division(placement, tuple(divide.Group(kind, (node,)) for node, kind in placement.kinds.items()))

    args = (torch.rand(3) + 1,)
    partition = LevelPartitioner(PartitionOptions(min_block_size=2)).partition(capture(function, args), oracle("lgamma"))
    assert kinds(partition) == ["engine", "torch", "engine"]
    assert partition.segments[1].calls == ("aten.lgamma.default", "aten.tanh.default", "aten.lgamma.default")
    check(partition, *args)


def test_one_small_engine_may_be_the_whole_program(capture, oracle, check, kinds):
    args = (torch.rand(3),)
    partition = LevelPartitioner().partition(capture(lambda x: x.relu(), args), oracle())
    assert kinds(partition) == ["engine"]
    assert partition.rejections == ()
    check(partition, *args)


def test_no_engine_is_one_torch_segment(capture, oracle, check, kinds):
    args = (torch.rand(3),)
    partition = LevelPartitioner(ANY_SIZE).partition(capture(lambda x: (x.relu().sin(), x.cos()), args), oracle("relu", "sin", "cos"))
    assert kinds(partition) == ["torch"]
    check(partition, *args)


class TwoLinears(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)
        self.register_buffer("scale", torch.rand(4))

    def forward(self, x):
        h = torch.lgamma(self.first(x) * self.scale)
        return self.second(h).relu() + self.scale


def test_weights_are_embedded_in_engines_and_passed_to_torch(capture, oracle, check, kinds):
    args = (torch.rand(2, 4),)
    partition = LevelPartitioner(ANY_SIZE).partition(capture(TwoLinears(), args), oracle("lgamma", "add"))
    assert kinds(partition) == ["engine", "torch", "engine", "torch"]
    assert partition.segments[0].weights == ("p_first_weight", "p_first_bias", "b_scale")
    assert partition.segments[0].inputs == ("x",)
    assert partition.weights == ("b_scale",)
    check(partition, *args)


def test_views_of_weights_are_copied_to_each_side(capture, oracle, check, kinds):
    weight = torch.rand(4, 4)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(weight)

        def forward(self, x):
            turned = self.weight.t()
            return torch.lgamma(x @ turned) + turned.sin()

    args = (torch.rand(4, 4),)
    partition = LevelPartitioner(ANY_SIZE).partition(capture(Model(), args), oracle("lgamma", "sin"))
    assert kinds(partition) == ["engine", "torch", "engine"]
    assert partition.segments[0].calls[0] in ("aten.permute.default", "aten.t.default")
    assert partition.segments[1].inputs == ("matmul",)
    assert partition.segments[1].weights == ("p_weight",)
    check(partition, *args)


def test_constants_are_made_where_they_are_read(capture, oracle, check, kinds):
    def function(x):
        one = torch.full((3,), 2.0)
        return torch.lgamma(x + one) * one, one

    args = (torch.rand(3),)
    partition = LevelPartitioner(ANY_SIZE).partition(capture(function, args), oracle("lgamma"))
    assert kinds(partition) == ["engine", "torch", "engine"]
    assert partition.segments[0].inputs == ("args_0",)
    assert partition.segments[2].inputs == ("lgamma",)
    check(partition, *args)


def test_outputs_may_pass_around_and_repeat(capture, oracle, check):
    def function(x, y):
        h = x.relu()
        return h, x, h, None, 3, y

    args = (torch.rand(3), torch.rand(2))
    partition = LevelPartitioner(ANY_SIZE).partition(capture(function, args), oracle())
    assert [segment.outputs for segment in partition.segments] == [("relu",)]
    check(partition, *args)


def test_parts_follow_their_call(capture, oracle, check, kinds):
    def function(x):
        first, second = torch.topk(x, 2)
        left, right = torch.split(first.relu(), 1, dim=0)
        return torch.lgamma(left) + right, second

    args = (torch.rand(2, 5),)
    partition = LevelPartitioner(ANY_SIZE).partition(capture(function, args), oracle("lgamma"))
    assert kinds(partition) == ["engine", "torch", "engine"]
    check(partition, *args)


def test_failed_builds_move_their_calls(capture, oracle, check, kinds):
    args = tuple(torch.rand(3, 4) + 1 for _ in range(3))
    program = capture(classic, args)
    first = LevelPartitioner(ANY_SIZE).partition(program, oracle("lgamma"))
    refused = {
        name: Rejection("aten.cat.default", name, "build-failed", "the engine could not be built") for name in first.segments[2].outputs
    }
    second = LevelPartitioner(ANY_SIZE, refused).partition(program, oracle("lgamma"))
    assert kinds(second) == ["engine", "torch"]
    assert {item.rule for item in second.rejections} == {"no-converter", "build-failed"}
    check(second, *args)


def test_calls_of_constants_only_are_no_engine(capture, oracle, check, kinds):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.rand(3))

        def forward(self, x):
            return torch.lgamma(self.weight.sin()) + x.cos()

    args = (torch.rand(3),)
    partition = LevelPartitioner(ANY_SIZE).partition(capture(Model(), args), oracle("lgamma"))
    assert kinds(partition) == ["torch", "engine"] or kinds(partition) == ["engine", "torch", "engine"]
    assert all(segment.inputs for segment in partition.segments if segment.kind == "engine")
    check(partition, *args)
    partition = LevelPartitioner(ANY_SIZE).partition(capture(lambda x: (torch.arange(3).sin(), torch.lgamma(x)), args), oracle("lgamma"))
    assert kinds(partition) == ["torch"]
    assert [item.rule for item in partition.rejections] == ["constant", "no-converter"]
    check(partition, *args)


def test_dead_calls_are_left_out(capture, oracle, check):
    program = capture(lambda x: x.relu(), (torch.rand(3),))
    with program.module.graph.inserting_before(next(iter(program.module.graph.find_nodes(op="output")))):
        x = next(iter(program.module.graph.find_nodes(op="placeholder")))
        dead = program.module.graph.call_function(torch.ops.aten.sin.default, (x,))
        dead.meta["val"] = x.meta["val"]
    partition = LevelPartitioner().partition(program, oracle())
    assert partition.segments[0].calls == ("aten.relu.default",)
    check(partition, torch.rand(3))


def test_metadata_stays_on_nodes(capture, oracle):
    partition = LevelPartitioner(ANY_SIZE).partition(capture(TwoLinears(), (torch.rand(2, 4),)), oracle("lgamma"))
    linear = next(node for node in partition.segments[0].module.graph.nodes if node.name == "linear")
    assert "nn_module_stack" in linear.meta
    assert "self.first" in linear.meta["stack_trace"]


@pytest.mark.parametrize("minimum", [1, 3, 5])
def test_same_result_twice(capture, oracle, minimum):
    program = capture(TwoLinears(), (torch.rand(2, 4),))
    once, again = (LevelPartitioner(PartitionOptions(min_block_size=minimum)).partition(program, oracle("lgamma")) for _ in range(2))
    assert once.module.code == again.module.code
    assert [segment.module.code for segment in once.segments] == [segment.module.code for segment in again.segments]
