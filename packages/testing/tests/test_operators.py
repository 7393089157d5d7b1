"""``check_op`` accepts a right converter and fails for each way in which one can be wrong."""

from __future__ import annotations

import pytest
import torch

from torchkiln_core import InternalError, Network
from torchkiln_core.layers import Cast, Elementwise, ElementwiseOp, Shuffle, Unary, UnaryOp
from torchkiln_testing import OpCase, OpClass, SizeOf, check_op, trace_call

aten = torch.ops.aten
X = torch.linspace(-2, 2, 15).reshape(5, 3)


class WrittenBy:
    """A segment converter that writes the same layers for any segment."""

    def __init__(self, write):
        self.write = write

    def convert(self, segment, program):
        fakes = {node.name: node.meta["val"] for node in program.module.graph.nodes}
        net = Network(program.dims, next(iter(fakes.values())).fake_mode)
        values = [net.input(name, fakes[name].dtype, tuple(fakes[name].shape)) for name in segment.inputs]
        values += [net.constant(program.weights[name]) for name in segment.weights]
        net.output("output0", self.write(net, *values))
        return net


ABS = WrittenBy(lambda net, x: net.add(Unary(UnaryOp.ABS), x))
SUM = WrittenBy(lambda net, x, y: net.add(Elementwise(ElementwiseOp.SUM), x, y))


class Builder:
    def __init__(self):
        self.built = []

    def build(self, network):
        self.built.append(network)


def test_a_right_converter_passes():
    network = check_op(OpCase(aten.abs.default, (X,), dynamic=((0, 0),)), ABS)
    assert len(network.steps) == 1


def test_wrong_values_fail():
    with pytest.raises(AssertionError, match=r"abs\.default-5x3-float32"):
        check_op(OpCase(aten.abs.default, (X,)), WrittenBy(lambda net, x: net.add(Unary(UnaryOp.NEG), x)))


def test_a_wrong_dtype_fails():
    with pytest.raises(AssertionError, match=r"expected dtype torch\.float32, got torch\.float16"):
        check_op(OpCase(aten.abs.default, (X,)), WrittenBy(lambda net, x: net.add(Cast(torch.float16), net.add(Unary(UnaryOp.ABS), x))))


def test_a_size_frozen_at_the_given_one_fails():
    """A converter that took a symbolic size for an integer passes with static sizes only."""

    def frozen(net, x):
        return net.add(Shuffle(dims=(15,)), x)

    check_op(OpCase(aten.view.default, (X, [-1])), WrittenBy(frozen))
    with pytest.raises(InternalError, match=r"Shuffle"):
        check_op(OpCase(aten.view.default, (X, [-1]), dynamic=((0, 0),)), WrittenBy(frozen))


def test_the_network_is_built_where_there_is_a_builder():
    builder = Builder()
    network = check_op(OpCase(aten.abs.default, (X,)), ABS, builder)
    assert builder.built == [network]


def test_weights_are_no_inputs():
    case = OpCase(aten.add.Tensor, (X, X + 1), weights=(1,))
    assert len(check_op(case, SUM).inputs) == 1


def test_equal_dynamic_sizes_share_a_symbol():
    traced = trace_call(OpCase(aten.add.Tensor, (X, X + 1), dynamic=((0, 0), (1, 0))))
    assert len(traced.program.dims) == 1
    (bounds,) = traced.program.dims.values()
    assert (bounds.min, bounds.opt, bounds.max) == (2, 5, 11)


def test_sizes_stand_in_arguments():
    case = OpCase(aten.new_zeros.default, (X, [SizeOf(0, 0, 1), 2]), dynamic=((0, 0),))
    assert case.eager()[0].shape == (6, 2)
    assert case.sized(lambda size: 2 * size).eager()[0].shape == (11, 2)
    (size, _) = trace_call(case).call.arguments["size"]
    assert str(size.meta["val"]).endswith("+ 1")


def test_composite_operators_stay_whole():
    traced = trace_call(OpCase(aten.linear.default, (X, torch.ones(4, 3))))
    assert [node.target for node in traced.program.module.graph.nodes if node.op == "call_function"] == [aten.linear.default]


def test_a_case_runs_in_other_dtypes():
    case = OpCase(aten.where.self, (X > 0, X, X), op_class=OpClass.EXACT).with_floats(torch.bfloat16)
    assert [tensor.dtype for tensor in case.tensors()] == [torch.bool, torch.bfloat16, torch.bfloat16]


def test_only_some_results_may_be_read():
    case = OpCase(aten.topk.default, (X, 2), results=(1,))
    assert [tensor.dtype for tensor in case.eager()] == [torch.int64]
    assert len(trace_call(case).segment.outputs) == 1


def test_a_view_next_to_its_base_keeps_static_sizes():
    base = torch.linspace(0, 1, 4)
    call = trace_call(OpCase(aten.maximum.default, (base[:, None], base)))
    shapes = [node.meta["val"].shape for node in call.program.module.graph.nodes if node.op == "placeholder"]
    assert [[type(size) for size in shape] for shape in shapes] == [[int, int], [int]]
