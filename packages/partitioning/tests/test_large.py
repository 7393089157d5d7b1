"""Graphs of ten thousand nodes: no recursion, no quadratic blow-up of the result."""

import torch
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from torchkiln_core.options import PartitionOptions
from torchkiln_core.program import InputKind, Program, ProgramInput
from torchkiln_core.spec import DimRange
from torchkiln_partitioning import LevelPartitioner

aten = torch.ops.aten


def long_program(calls, numbers):
    """A chain of calls, every tenth of which stays in PyTorch, and a chain of numbers that the last call reads."""
    mode = torch._subclasses.FakeTensorMode(shape_env=ShapeEnv())
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = mode.from_tensor(torch.rand(5, 3), symbolic_context=context)
    value = x
    for number in range(calls):
        value = graph.call_function(aten.tanh.default if number % 10 == 9 else aten.sin.default, (value,))
        value.meta["val"] = x.meta["val"]
    size = graph.call_function(aten.sym_size.int, (x, 1))
    size.meta["val"] = 3
    size = graph.call_function(aten.sym_size.int, (x, 0))
    size.meta["val"] = x.meta["val"].shape[0]
    for _ in range(numbers):
        size = graph.call_function(torch.sym_max, (size, size))
        size.meta["val"] = x.meta["val"].shape[0]
    value = graph.call_function(aten.expand.default, (value, [size, 3]))
    value.meta["val"] = x.meta["val"]
    graph.output((value, size))
    symbol = str(x.meta["val"].shape[0])
    return Program(torch.fx.GraphModule({}, graph), (ProgramInput("x", InputKind.USER),), {}, {symbol: DimRange(symbol, 2, 5, 9)})


def test_ten_thousand_nodes(oracle, kinds):
    partition = LevelPartitioner(PartitionOptions(min_block_size=1)).partition(long_program(7000, 3000), oracle("tanh"))
    assert len(partition.segments) == 1401
    assert kinds(partition)[:3] == ["engine", "torch", "engine"]
    total = sum(len(segment.module.graph.nodes) for segment in partition.segments)
    assert total < 20_000


def test_one_segment_of_ten_thousand_nodes(oracle, kinds):
    partition = LevelPartitioner().partition(long_program(7000, 3000), oracle())
    assert kinds(partition) == ["engine"]
    assert len(partition.segments[0].calls) == 7001
