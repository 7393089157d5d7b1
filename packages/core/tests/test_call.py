"""``OpCall``: arguments by schema name, outputs, and the user's source line."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.fx
from core_programs import exported

from torchkiln_core import InternalError, OpCall, Rejection, module_path, source_of
from torchkiln_core.rejection import target_name

aten = torch.ops.aten


class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv1d(2, 3, 3)

    def forward(self, x):
        return torch.relu(self.conv(x))


class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Inner(), torch.nn.Identity()])

    def forward(self, x):
        return (*self.layers[0](x).topk(2), x.sum())


@pytest.fixture(scope="module")
def calls():
    graph = exported(Outer(), (torch.randn(1, 2, 8),)).graph
    nodes = [node for node in graph.nodes if node.op == "call_function" and node.target is not operator.getitem]
    return {str(node.target): OpCall.from_node(node) for node in nodes}


def _node(target, args=(), kwargs=None, **meta):
    node = torch.fx.Graph().call_function(target, args, kwargs)
    node.meta.update(meta)
    return node


def test_arguments_by_name_with_defaults(calls):
    call = calls["aten.topk.default"]
    assert list(call.arguments) == ["self", "k", "dim", "largest", "sorted"]
    assert isinstance(call.arguments["self"], torch.fx.Node)
    assert {name: call.arguments[name] for name in ("k", "dim", "largest", "sorted")} == {
        "k": 2,
        "dim": -1,
        "largest": True,
        "sorted": True,
    }
    assert [tuple(output.shape) for output in call.outputs] == [(1, 3, 2), (1, 3, 2)]
    assert [output.dtype for output in call.outputs] == [torch.float32, torch.int64]


def test_one_output_is_a_tuple_of_one(calls):
    call = calls["aten.sum.default"]
    assert len(call.outputs) == 1
    assert call.arguments["dtype"] is None
    assert call.node.target is call.target is aten.sum.default


def test_keyword_only_arguments_and_defaults():
    fake = torch.empty(2)
    call = OpCall.from_node(_node(aten.add.Tensor, (1, 2), {"alpha": 3}, val=fake))
    assert call.arguments == {"self": 1, "other": 2, "alpha": 3}
    call = OpCall.from_node(_node(aten.add.Tensor, (1,), {"other": 2}, val=fake))
    assert call.arguments == {"self": 1, "other": 2, "alpha": 1}
    call = OpCall.from_node(_node(aten.conv2d.default, (1, 2), val=fake))
    assert call.arguments["bias"] is None
    assert list(call.arguments["stride"]) == [1, 1]
    assert call.arguments["groups"] == 1
    assert call.where is None


def test_functions_without_a_schema_keep_positions():
    call = OpCall.from_node(_node(operator.mul, (3, 4), val=12))
    assert call.arguments == {"0": 3, "1": 4}
    assert call.outputs == (12,)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (_node(aten.relu.default, (1,)), r"relu.*no meta\['val'\]"),
        (_node(aten.relu.default, (1, 2), val=0), "arguments do not fit"),
        (_node(aten.relu.default, (1,), {"alpha": 2}, val=0), "arguments do not fit"),
        (_node(aten.relu.default, (), val=0), "needs self"),
        (_node(aten.add.Tensor, (1, 2, 3), val=0), "arguments do not fit"),
        (_node(aten.topk.default, (1, 2), {"k": 3}, val=0), "k given twice"),
        (torch.fx.Graph().placeholder("x"), "expected a call_function, got placeholder"),
    ],
)
def test_calls_that_do_not_fit_are_refused(node, message):
    node.meta["stack_trace"] = 'File "m.py", line 7, in forward\n  return f(x)'
    with pytest.raises(InternalError, match=message) as caught:
        OpCall.from_node(node)
    assert caught.value.where == "m.py:7 in forward: return f(x)"


def test_where_a_call_was_written(calls):
    call = calls["aten.relu.default"]
    assert call.where.startswith(f"{__file__}:")
    assert "in forward: return torch.relu(self.conv(x))" in call.where
    assert call.where.endswith("(module: layers.0)")
    assert module_path(calls["aten.conv1d.default"].node) == "layers.0.conv"
    assert module_path(calls["aten.sum.default"].node) is None


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        ('  File "a.py", line 1, in f\n    g(x)\n  File "b.py", line 22, in g\n    return x + 1\n    ~~^~~', "b.py:22 in g: return x + 1"),
        ('File "/a, b/c.py", line 3, in forward\n  y = x', "/a, b/c.py:3 in forward: y = x"),
        ('File "a.py", line 3, in <lambda>', "a.py:3 in <lambda>"),
        ('File "a.py", line 3\n  File "not a frame"', 'a.py:3: File "not a frame"'),
        ('File "a.py", line 1, in f\n  g(x)\n  File "<eval_with_key>.5", line 2, in forward\n  y = z', "a.py:1 in f: g(x)"),
        ('File "<eval_with_key>.5", line 2, in forward\n  y = z', None),
        ("no frames here", None),
        ("", None),
    ],
)
def test_source_of_reads_the_innermost_frame(trace, expected):
    assert source_of(_node(aten.relu.default, (1,), stack_trace=trace)) == expected


def test_source_of_names_the_module_without_a_trace():
    stack = {"a": ("", torch.nn.Module), "b": ("layer1.0.conv", torch.nn.Conv2d)}
    node = _node(aten.relu.default, (1,), nn_module_stack=stack)
    assert source_of(node) == "(module: layer1.0.conv)"
    assert source_of(_node(aten.relu.default, (1,), nn_module_stack={"a": ("", torch.nn.Module)})) is None


def test_a_rejection_says_what_why_and_where(calls):
    rejection = Rejection.of(calls["aten.relu.default"], "dtype", "expected float32, got int8")
    assert str(rejection).startswith("aten.relu.default (relu) [dtype]: expected float32, got int8 at ")
    assert rejection.where == calls["aten.relu.default"].where
    assert str(Rejection("aten.relu.default", "relu", "rank", "m")) == "aten.relu.default (relu) [rank]: m"
    assert target_name(operator.mul) == "mul"
