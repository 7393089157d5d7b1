"""Dynamic shapes: numbers never cross the border of an engine."""

import dataclasses

import pytest
import torch
from torch.export import Dim

from torchkiln_core.options import PartitionOptions
from torchkiln_core.program import InputKind, Program, ProgramInput
from torchkiln_core.spec import DimRange
from torchkiln_partitioning import LevelPartitioner, describe, input_specs

ANY_SIZE = PartitionOptions(min_block_size=1)
BATCH = ({0: Dim("b", min=2, max=8)},)


def test_sizes_are_recomputed_in_the_engine(capture, oracle, check, kinds):
    def function(x):
        h = torch.lgamma(x)
        return (h * 2).reshape(x.shape[0] * 3, 4).relu(), x.shape[0] * 2

    partition = LevelPartitioner(ANY_SIZE).partition(capture(function, (torch.rand(2, 3, 4),), BATCH), oracle("lgamma"))
    assert kinds(partition) == ["torch", "engine"]
    assert partition.segments[1].inputs == ("lgamma",)
    for batch in (2, 5):
        check(partition, torch.rand(batch, 3, 4))


def test_engine_takes_the_tensor_that_has_the_size(capture, oracle, check, kinds):
    def function(x, y):
        return torch.lgamma(y.relu()).expand(x.shape[0], 4) * 2

    dims = (*BATCH, None)
    partition = LevelPartitioner(ANY_SIZE).partition(capture(function, (torch.rand(2, 3), torch.rand(1, 4)), dims), oracle("lgamma"))
    assert kinds(partition) == ["engine", "torch", "engine"]
    assert partition.segments[2].inputs == ("args_0", "lgamma")
    for batch in (2, 5):
        check(partition, torch.rand(batch, 3), torch.rand(1, 4))


def test_torch_segments_are_given_numbers(capture, oracle, check, kinds):
    def function(x, y):
        return torch.lgamma(y.relu()).expand(x.shape[0] + 1, 4).sin() * 2

    dims = (*BATCH, None)
    program = capture(function, (torch.rand(2, 3), torch.rand(1, 4)), dims)
    partition = LevelPartitioner(ANY_SIZE).partition(program, oracle("lgamma", "expand", "sin"))
    assert kinds(partition) == ["engine", "torch", "engine"]
    assert any(not isinstance(node.meta["val"], torch.Tensor) for node in partition.segments[1].module.graph.find_nodes(op="placeholder"))
    check(partition, torch.rand(4, 3), torch.rand(1, 4))


def with_symint_input(program: Program, keep_tensor: bool) -> Program:
    """The program with its first size as an argument of the call, as torch.compile captures it."""
    graph = program.module.graph
    size = next(node for node in graph.nodes if node.target is torch.ops.aten.sym_size.int)
    first = next(iter(graph.nodes))
    with graph.inserting_before(first):
        symbol = graph.placeholder("s0")
    symbol.meta["val"] = size.meta["val"]
    size.replace_all_uses_with(symbol)
    graph.erase_node(size)
    inputs = (ProgramInput("s0", InputKind.USER), *program.inputs)
    if not keep_tensor:
        (unused,) = [node for node in graph.find_nodes(op="placeholder") if not node.users]
        graph.erase_node(unused)
        inputs = tuple(item for item in inputs if item.name != unused.name)
    program.module.recompile()
    return Program(program.module, inputs, program.weights, program.dims)


def expanding(x, y):
    return y.relu().expand(x.shape[0], 4) * 2


def test_symint_argument_is_read_from_a_tensor_argument(capture, oracle, check, kinds):
    program = with_symint_input(capture(expanding, (torch.rand(2, 3), torch.rand(1, 4)), (*BATCH, None)), keep_tensor=True)
    partition = LevelPartitioner().partition(program, oracle())
    assert kinds(partition) == ["engine"]
    assert partition.segments[0].inputs == ("args_0", "args_1")
    check(partition, 5, torch.rand(5, 3), torch.rand(1, 4))


def test_symint_argument_without_a_tensor_stays_in_pytorch(capture, oracle, check, kinds):
    program = with_symint_input(capture(expanding, (torch.rand(2, 3), torch.rand(1, 4)), (*BATCH, None)), keep_tensor=False)
    partition = LevelPartitioner(ANY_SIZE).partition(program, oracle())
    assert kinds(partition) == ["engine", "torch", "engine"]
    assert [(item.node, item.rule) for item in partition.rejections] == [("expand", "symint")]
    check(partition, 5, torch.rand(1, 4))


def test_symint_is_read_from_an_earlier_result(capture, oracle, check, kinds):
    def function(x, y):
        made = y.relu().expand(x.shape[0], 4)
        return (made * 2).reshape(x.shape[0] * 2, 2)

    program = with_symint_input(capture(function, (torch.rand(2, 3), torch.rand(1, 4)), (*BATCH, None)), keep_tensor=False)
    partition = LevelPartitioner(ANY_SIZE).partition(program, oracle("expand"))
    assert kinds(partition) == ["engine", "torch", "engine"]
    assert partition.segments[2].inputs == ("expand",)
    check(partition, 5, torch.rand(1, 4))


def test_size_of_an_engine_result(capture, oracle, check, kinds):
    def function(x):
        h = torch.cat([x, x, x])
        return torch.lgamma(h).sum() * h.shape[0], h.shape[0]

    partition = LevelPartitioner(ANY_SIZE).partition(capture(function, (torch.rand(4, 3),), BATCH), oracle("lgamma"))
    check(partition, torch.rand(6, 3))


def test_item_passes_between_torch_segments_only(capture, oracle, check, run):
    def function(x, n):
        size = n.item()
        torch._check(size >= 2)
        torch._check(size < 100)
        made = torch.zeros(size, 3).sin()
        return (x.relu() + 1).cos() * 2, made.relu() * 2

    args = (torch.rand(2, 3), torch.tensor(4))
    partition = LevelPartitioner(ANY_SIZE).partition(capture(function, args), oracle("sin"))
    rules = {item.node: item.rule for item in partition.rejections}
    assert rules["item"] == "symint"
    check(partition, *args)
    # Checks of numbers run between the segments and refuse what the program refuses.
    assert not [name for segment in partition.segments for name in segment.calls if "assert" in name or "constrain" in name]
    with pytest.raises(RuntimeError, match="u0 >= 2"):
        check(partition, torch.rand(2, 3), torch.tensor(1))
    with pytest.raises(RuntimeError, match="u0 >= 2"):
        run(partition, torch.rand(2, 3), torch.tensor(1))


def test_sizes_of_unknown_range_do_not_enter_engines(capture, oracle, check):
    def function(x):
        found = torch.nonzero(x)
        return torch.lgamma(found.float()).relu() * 2, x.relu()

    args = (torch.tensor([0.0, 1.0, 2.0]),)
    program = dataclasses.replace(capture(function, args), dims={})
    partition = LevelPartitioner(ANY_SIZE).partition(program, oracle("lgamma"))
    assert {item.rule for item in partition.rejections} >= {"range"}
    for segment in partition.segments:
        if segment.kind == "engine":
            input_specs(segment, partition.program.dims)
    check(partition, *args)


@pytest.mark.parametrize("number_of", [lambda size: torch.full((), size, dtype=torch.float32), torch.sym_float])
def test_sizes_of_unknown_range_do_not_enter_engines_behind_what_is_read(capture, oracle, check, number_of):
    def function(x):
        return (x.relu() * number_of(torch.nonzero(x).shape[0])).sin()

    args = (torch.tensor([0.0, 1.0, 2.0]),)
    program = dataclasses.replace(capture(function, args), dims={})
    partition = LevelPartitioner(ANY_SIZE).partition(program, oracle("nonzero"))
    # Releases of torch name the product differently.
    assert {item.node.partition("_")[0]: item.rule for item in partition.rejections} == {"nonzero": "no-converter", "mul": "range"}
    check(partition, *args)


def test_number_is_not_read_from_a_tensor_of_unknown_extent(capture, oracle, check):
    def function(x, y):
        found = torch.nonzero(y).float().sum(1, keepdim=True).expand(-1, x.shape[0])
        return torch.lgamma(found).sum(0) + 1, torch.lgamma(y.sin()).sum() * torch.ones(x.shape[0] * 2).cos()

    args = (torch.rand(4, 3), torch.tensor([0.0, 1.0, 2.0]))
    program = capture(function, args, ({0: Dim("b", min=2, max=8)}, None))
    program = dataclasses.replace(program, dims={name: dim for name, dim in program.dims.items() if not name.startswith("u")})
    partition = LevelPartitioner(ANY_SIZE).partition(program, oracle("lgamma"))
    for segment in partition.segments:
        if segment.kind == "engine":
            input_specs(segment, program.dims)
    check(partition, *args)


def test_input_specs_bound_expressions(capture, oracle):
    def function(x):
        return torch.lgamma(torch.cat([x, x])).relu()

    program = capture(function, (torch.rand(4, 3),), BATCH)
    (symbol,) = program.dims
    partition = LevelPartitioner(ANY_SIZE).partition(program, oracle("lgamma", "cat"))
    (spec,) = input_specs(partition.segments[1], {symbol: DimRange(symbol, 2, 4, 8)})
    dim = spec.shape[0]
    assert (dim.min, dim.opt, dim.max) == (4, 8, 16)
    assert dim.symbol in (f"2*{symbol}", f"{symbol}*2")
    assert spec.shape[1] == 3


def test_sizes_without_bounds_do_not_enter_engines(capture, oracle, check):
    def function(x):
        return torch.lgamma(torch.arange(64 // (x.shape[0] - 1)) + 1).cos(), x.relu()

    program = capture(function, (torch.rand(4, 3),), ({0: Dim("b", min=3, max=8)},))
    (symbol,) = program.dims
    partition = LevelPartitioner(ANY_SIZE).partition(program, oracle("lgamma"))
    assert [item.rule for item in partition.rejections] == ["no-converter"]
    program = dataclasses.replace(program, dims={symbol: DimRange(symbol, 1, 4, 8)})
    partition = LevelPartitioner(ANY_SIZE).partition(program, oracle("lgamma"))
    assert {item.node: item.rule for item in partition.rejections}["cos"] == "range"
    assert any(None in value.dims for item in describe(partition) for value in item.outputs)
    check(partition, torch.rand(5, 3))


@pytest.mark.parametrize("batch", [2, 7])
def test_number_of_a_literal_size(capture, oracle, check, batch):
    def function(x):
        return x.relu().reshape(x.shape[0], x.shape[1] * x.shape[2]) * x.shape[1]

    partition = LevelPartitioner().partition(capture(function, (torch.rand(3, 3, 4),), BATCH), oracle())
    check(partition, torch.rand(batch, 3, 4))


def test_every_border_has_symbols_and_profiles(capture, oracle):
    def function(x):
        return torch.lgamma(torch.cat([x, x]).sin()), torch.nonzero(x.lgamma()).float().lgamma().cos()

    program = capture(function, (torch.rand(4, 3),), BATCH)
    (symbol,) = [name for name in program.dims if name.startswith("s")]
    program = dataclasses.replace(program, dims={symbol: DimRange(symbol, 2, 4, 8)})
    described = describe(LevelPartitioner(ANY_SIZE).partition(program, oracle("lgamma", "nonzero")))
    borders = {value.name: value for item in described for value in (*item.inputs, *item.outputs)}
    for item in described:
        inputs = [node for node in item.segment.module.graph.find_nodes(op="placeholder") if node.name in item.segment.inputs]
        assert [value.name for value in item.inputs] == [node.name for node in inputs]
        assert [value.name for value in item.outputs] == list(item.segment.outputs)
    rows = borders["sin"].dims[0]
    assert (rows.min, rows.opt, rows.max) == (4, 8, 16)
    assert borders["sin"].dims[1] == 3
    assert borders["sin"].num_bytes == 8 * 3 * 4
    assert not borders["sin"].data_dependent
    marked = {name for name, value in borders.items() if value.data_dependent}
    assert marked
    assert all(str(borders[name].sizes[0]).startswith("u") for name in marked)


def test_item_that_an_engine_reads_from_a_shape_comes_from_its_call(capture, oracle, check, kinds):
    def function(x, n):
        size = n.item()
        torch._check(size >= 2)
        torch._check(size < 100)
        made = x.expand(size, 3).sin()
        return made.relu() * size + 1, size

    args = (torch.rand(1, 3), torch.tensor(4))
    partition = LevelPartitioner(ANY_SIZE).partition(capture(function, args), oracle("sin"))
    assert kinds(partition) == ["torch", "engine"]
    assert partition.segments[1].calls == ("aten.relu.default", "aten.mul.Tensor", "aten.add.Tensor")
    check(partition, *args)


def test_python_scalars_pass_between_segments_in_pytorch(capture, oracle, check):
    def function(x):
        scale = x.sum().item()
        return (x.sin() * scale).cos() + scale

    args = (torch.rand(2, 3),)
    partition = LevelPartitioner(ANY_SIZE).partition(capture(function, args), oracle("cos"))
    rules = {item.node: item.rule for item in partition.rejections}
    assert rules["item"] == rules["mul"] == "symint"
    assert "sin" not in rules
    check(partition, *args)
    check(partition, -args[0])
