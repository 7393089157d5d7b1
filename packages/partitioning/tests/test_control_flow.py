"""Higher-order calls and calls that write."""

import pytest
import torch

from torchkiln_core.options import PartitionOptions
from torchkiln_core.program import InputKind, Program, ProgramInput
from torchkiln_partitioning import LevelPartitioner

ANY_SIZE = PartitionOptions(min_block_size=1)


def branching(x):
    h = x.sin()
    chosen = torch.cond(h.sum() > 0, lambda a: a + 1, lambda a: a - 1, (h,))
    return chosen.cos() * 2 + h


def test_cond_in_pytorch_has_a_segment_of_its_own(capture, oracle, check, kinds):
    args = (torch.rand(2, 3),)
    partition = LevelPartitioner(ANY_SIZE).partition(capture(branching, args), oracle("cond", "sum", "cos"))
    assert kinds(partition) == ["engine", "torch", "engine", "torch", "torch", "engine"]
    assert partition.segments[3].calls == ("cond",)
    check(partition, *args)
    check(partition, -args[0])


def test_cond_in_an_engine_has_a_segment_of_its_own(capture, oracle, check, kinds):
    args = (torch.rand(2, 3),)
    partition = LevelPartitioner(ANY_SIZE).partition(capture(branching, args), oracle())
    assert kinds(partition) == ["engine"] * 3
    assert partition.segments[1].calls == ("cond",)
    assert {node.target for node in partition.segments[1].module.graph.find_nodes(op="get_attr")} == {"true_graph_0", "false_graph_0"}
    check(partition, *args)
    check(partition, -args[0])


def looping(x):
    h = x.sin()
    count, last = torch.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a.cos()), (torch.zeros((), dtype=torch.int64), h))
    return last.tanh() + count


def mapping(x):
    from torch._higher_order_ops.map import map as map_rows

    return map_rows(lambda row, other: row.cos() + other, x.sin(), x[0].clone()).tanh()


def scanning(x):
    from torch._higher_order_ops.scan import scan

    carry, rows = scan(lambda carry, row: (carry + row, carry * row), x[0].sin(), x.cos())
    return carry.tanh(), rows.tanh()


@pytest.mark.parametrize("function", [branching, looping, mapping, scanning])
@pytest.mark.parametrize("refused", [(), ("while_loop", "map_impl", "scan", "cond")])
def test_higher_order_calls_stay_whole(capture, oracle, check, function, refused):
    args = (torch.rand(2, 3),)
    partition = LevelPartitioner(ANY_SIZE).partition(capture(function, args), oracle(*refused))
    whole = [segment for segment in partition.segments if any("." not in call for call in segment.calls)]
    assert len(whole) == 1
    assert [call for call in whole[0].calls if call != "aten.zeros.default"] == [call for call in whole[0].calls if "." not in call]
    assert whole[0].kind == ("torch" if refused else "engine")
    check(partition, *args)


def test_bodies_count_for_the_minimum(capture, oracle, kinds):
    args = (torch.rand(2, 3),)
    program = capture(branching, args)
    assert kinds(LevelPartitioner(PartitionOptions(min_block_size=2)).partition(program, oracle())) == ["engine"] * 3
    assert "torch" in kinds(LevelPartitioner(PartitionOptions(min_block_size=3)).partition(program, oracle()))


def test_random_body_is_an_effect(capture, oracle):
    def function(x):
        return torch.cond(x.sum() > 0, torch.rand_like, lambda a: a - 1, (x,)) * 2

    partition = LevelPartitioner(ANY_SIZE).partition(capture(function, (torch.rand(2, 3),)), oracle())
    assert {item.node: item.rule for item in partition.rejections} == {"cond": "effect"}


def writing_program():
    """``sin(x)``, then ``x.copy_(y)``, then ``cos(x)``: a write that keeps reads on their side."""
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    sin = graph.call_function(torch.ops.aten.sin.default, (x,))
    graph.call_function(torch.ops.aten.copy_.default, (x, y))
    cos = graph.call_function(torch.ops.aten.cos.default, (x,))
    graph.output((sin, cos, x))
    mode = torch._subclasses.FakeTensorMode()
    for node in graph.nodes:
        if node.op != "output":
            node.meta["val"] = mode.from_tensor(torch.rand(3))
    module = torch.fx.GraphModule({}, graph)
    return Program(module, tuple(ProgramInput(name, InputKind.USER) for name in "xy"), {}, {})


def test_writes_keep_reads_on_their_side(oracle, kinds):
    partition = LevelPartitioner(ANY_SIZE).partition(writing_program(), oracle())
    assert kinds(partition) == ["engine", "torch", "engine"]
    x, y = torch.rand(3), torch.rand(3)
    before = x.clone()
    sin, cos, out = partition.module(x, y)
    torch.testing.assert_close(sin, before.sin())
    torch.testing.assert_close(cos, y.cos())
    assert out is x


@pytest.mark.skipif(not torch.distributed.is_available(), reason="distributed: this torch is built without it")
def test_collectives_keep_their_order(oracle, kinds):
    import torch.distributed._functional_collectives

    reduce = torch.ops._c10d_functional.all_reduce.default
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    first = graph.call_function(reduce, (x, "sum", "0"))
    sin = graph.call_function(torch.ops.aten.sin.default, (first,))
    second = graph.call_function(reduce, (sin, "sum", "0"))
    third = graph.call_function(reduce, (y, "sum", "0"))
    graph.output((second, third))
    mode = torch._subclasses.FakeTensorMode()
    for node in graph.nodes:
        if node.op != "output":
            node.meta["val"] = mode.from_tensor(torch.rand(3))
    program = Program(torch.fx.GraphModule({}, graph), tuple(ProgramInput(name, InputKind.USER) for name in "xy"), {}, {})
    partition = LevelPartitioner(ANY_SIZE).partition(program, oracle())
    # Without an order the third call, which reads an input only, would share the first segment.
    assert [segment.outputs for segment in partition.segments] == [(first.name,), (sin.name,), (second.name, third.name)]
    assert {item.rule for item in partition.rejections} == {"effect"}
