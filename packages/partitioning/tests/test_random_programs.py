"""Random programs: the division covers every call once, respects order, and computes the same."""

import operator

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from torchkiln_core.options import PartitionOptions
from torchkiln_core.program import InputKind, Program, ProgramInput
from torchkiln_core.spec import DimRange
from torchkiln_partitioning import LevelPartitioner
from torchkiln_partitioning.levels import Dependencies, Kind

aten = torch.ops.aten
SETTINGS = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Builder:
    """Writes a program of tensors ``[s0, 3]`` with sizes, constants, weights, views of weights and calls of several results."""

    def __init__(self):
        self.graph = torch.fx.Graph()
        self.mode = torch._subclasses.FakeTensorMode(shape_env=ShapeEnv())
        context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
        self.weight = torch.linspace(0.1, 1.0, 3)
        w, x, y = (self.graph.placeholder(name) for name in "wxy")
        w.meta["val"] = self.mode.from_tensor(self.weight)
        x.meta["val"] = self.mode.from_tensor(torch.rand(5, 3), symbolic_context=context)
        y.meta["val"] = x.meta["val"]
        self.tensors, self.vectors, self.sizes = [x, y], [w], []

    def call(self, target, *args):
        node = self.graph.call_function(target, args)
        values = torch.fx.node.map_arg(args, lambda read: read.meta["val"])
        with self.mode:
            node.meta["val"] = target(*values)
        return node

    def add(self, choice, first, second):
        tensor, other = self.tensors[first % len(self.tensors)], self.tensors[second % len(self.tensors)]
        match choice:
            case "add" | "mul":
                self.tensors.append(self.call(getattr(aten, choice).Tensor, tensor, other))
            case "sin" | "tanh":
                self.tensors.append(self.call(getattr(aten, choice).default, tensor))
            case "scale":
                self.tensors.append(self.call(aten.mul.Tensor, tensor, self.vectors[second % len(self.vectors)]))
            case "view":
                self.vectors.append(self.call(aten.unsqueeze.default, self.vectors[0], 0))
            case "max":
                part = self.call(operator.getitem, self.call(aten.max.dim, tensor, 1, True), 0)
                self.tensors.append(self.call(aten.mul.Tensor, other, part))
            case "size":
                self.sizes.append(self.call(aten.sym_size.int, tensor, 0))
            case _ if self.sizes:
                self.add_sized(choice, tensor, self.sizes[second % len(self.sizes)])

    def add_sized(self, choice, tensor, size):
        match choice:
            case "double":
                self.sizes.append(self.call(operator.floordiv, self.call(operator.mul, size, 2), 2))
            case "full":
                self.tensors.append(self.call(aten.add.Tensor, tensor, self.call(aten.full.default, [size, 3], 0.5)))
            case "expand":
                self.tensors.append(self.call(aten.add.Tensor, tensor, self.call(aten.expand.default, self.vectors[-1], [size, 3])))

    def program(self, results):
        self.graph.output(tuple(results))
        module = torch.fx.GraphModule({}, self.graph)
        inputs = (ProgramInput("w", InputKind.WEIGHT, "w"), ProgramInput("x", InputKind.USER), ProgramInput("y", InputKind.USER))
        symbol = str(self.tensors[0].meta["val"].shape[0])
        return Program(module, inputs, {"w": self.weight}, {symbol: DimRange(symbol, 2, 5, 9)})


CHOICES = ["add", "mul", "sin", "tanh", "scale", "view", "size", "size", "double", "full", "expand", "max"]
STEPS = st.lists(st.tuples(st.sampled_from(CHOICES), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=14)


@SETTINGS
@given(
    steps=STEPS,
    refused=st.sets(st.sampled_from(["add", "mul", "sin", "tanh", "expand", "unsqueeze", "full", "max"])),
    picks=st.lists(st.integers(0, 20), min_size=1, max_size=3),
    minimum=st.integers(1, 3),
)
def test_random_programs(oracle, check, steps, refused, picks, minimum):
    builder = Builder()
    for step in steps:
        builder.add(*step)
    values = [*builder.tensors, *builder.sizes, *builder.vectors]
    program = builder.program([values[-1 - pick % len(values)] for pick in picks])
    partition = LevelPartitioner(PartitionOptions(min_block_size=minimum)).partition(program, oracle(*refused))
    check(partition, torch.rand(4, 3), torch.rand(4, 3))
    once = {}
    for segment in partition.segments:
        for node in segment.module.graph.nodes:
            once.setdefault(node.name, []).append(segment.name)
    for name in ("add", "mul", "sin", "tanh", "max_1"):
        assert len(once.get(name, [])) <= 1
    engines = [segment for segment in partition.segments if segment.kind == "engine"]
    assert len(partition.segments) == 1 or all(len(segment.calls) >= minimum for segment in engines)


@SETTINGS
@given(
    shape=st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=9),
    wanted=st.sets(st.integers(0, 9)),
)
def test_random_programs_have_the_fewest_segments(oracle, check, fewest, shape, wanted):
    builder, graph = Builder(), Dependencies()
    for refused, first, second in shape:
        # Whether a call is refused must not depend on what it reads, so the operator tells.
        left, right = first % len(builder.tensors), second % len(builder.tensors)
        builder.add("mul" if refused else "add", left, right)
        # The first two tensors are inputs.
        graph.add(Kind.TORCH if refused else Kind.ENGINE, [read - 2 for read in (left, right) if read >= 2])
    program = builder.program([tensor for place, tensor in enumerate(builder.tensors[2:]) if place in wanted] + builder.tensors[-1:])
    live = live_part(graph, wanted)
    partition = LevelPartitioner(PartitionOptions(min_block_size=1)).partition(program, oracle("mul"))
    assert len(partition.segments) == fewest(live)
    assert sum(len(segment.calls) for segment in partition.segments) == len(live.kinds)
    check(partition, torch.rand(4, 3), torch.rand(4, 3))


def live_part(graph, wanted):
    """The vertices that the last one or a wanted one depends on."""
    last = len(graph.kinds) - 1
    alive = {last, *(place for place in wanted if place <= last)}
    for vertex in range(last, -1, -1):
        if vertex in alive:
            alive.update(graph.predecessors[vertex])
    numbers = {vertex: number for number, vertex in enumerate(sorted(alive))}
    result = Dependencies()
    for vertex in numbers:
        result.add(graph.kinds[vertex], [numbers[before] for before in graph.predecessors[vertex]])
    return result
