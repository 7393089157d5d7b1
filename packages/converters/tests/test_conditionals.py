"""Which calls of ``torch.cond`` become a layer, and the layer that they become."""

from __future__ import annotations

import pytest
import torch

from torchkiln_converters.conditionals import COND
from torchkiln_core import ConversionError, InputKind, Interpreter, OpCall, Program, ProgramInput, Segment
from torchkiln_core.layers import Constant, IfConditional

aten = torch.ops.aten
X = torch.linspace(-1.0, 2.0, 12).reshape(4, 3)


class Net(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.register_buffer("weight", torch.arange(9.0).reshape(3, 3))

    def forward(self, p, x):
        return self.function(self.weight, p, x)


def segment_of(function, p=None, x=X, shapes=None):
    """A program of a call that is one engine segment, with its call of ``torch.cond``."""
    exported = torch.export.export(Net(function), (torch.tensor(True) if p is None else p, x), dynamic_shapes=shapes)
    module = exported.graph_module
    weights = {name: exported.state_dict[target] for name, target in exported.graph_signature.inputs_to_buffers.items()}
    items = [
        ProgramInput(node.name, InputKind.WEIGHT if node.name in weights else InputKind.USER, "weight" if node.name in weights else None)
        for node in module.graph.find_nodes(op="placeholder")
    ]
    program = Program(module, tuple(items), weights, {})
    outputs = tuple(f"y{index}" for index in range(len(module.graph.output_node().args[0])))
    segment = Segment("engine_0", "engine", module, program.user_inputs, tuple(weights), outputs, ())
    [node] = module.graph.find_nodes(op="call_function", target=COND)
    return segment, program, node


def linear(weight, p, x):
    return torch.cond(p, lambda t: (t @ weight, t.clone(), t + 1), lambda t: (t * 2, t - 1, t.clone()), (x,))


def test_both_branches_hold_the_weights_that_they_read(converter, builder):
    segment, program, _ = segment_of(linear)
    network = converter.convert(segment, program)
    [step] = network.steps
    assert isinstance(step.layer, IfConditional)
    assert (step.name, len(step.inputs)) == ("cond/IfConditional", 2)
    held = [inner for inner in step.layer.then.steps if isinstance(inner.layer, Constant)]
    assert [(inner.weight, inner.layer.tensor is program.weights["b_weight"]) for inner in held if inner.weight] == [("weight", True)]
    assert not [inner for inner in step.layer.otherwise.steps if inner.weight]
    assert all(inner.name.startswith(("cond/", "weight/")) for inner in network.all_steps())
    for p in (True, False):
        expected = linear(program.weights["b_weight"], torch.tensor(p), X)
        for got, wanted in zip(Interpreter(network)(torch.tensor(p), X), expected, strict=True):
            assert torch.equal(got, wanted)
    if builder is not None:
        builder.build(network)


def test_a_predicate_of_one_element(converter):
    segment, program, _ = segment_of(linear, torch.tensor([[False]]))
    network = converter.convert(segment, program)
    assert torch.equal(Interpreter(network)(torch.tensor([[False]]), X)[0], X * 2)


def refused_graph(change):
    """Why a call is refused of which ``change`` has edited a branch."""
    _, program, node = segment_of(
        lambda weight, p, x: torch.cond(p, lambda t: (t.sin(), t @ weight), lambda t: (t.clone(), t.cos()), (x + 1,))
    )
    branch = program.module.true_graph_0
    change(branch, next(call for call in branch.graph.nodes if call.target is aten.sin.default))
    return node


def _another_dtype(branch, sin):
    sin.meta["val"] = sin.meta["val"].half()


def _another_shape(branch, sin):
    sin.meta["val"] = sin.meta["val"][:2]


def _an_unknown_type(branch, sin):
    del sin.meta["val"]


def _a_number(branch, sin):
    branch.graph.output_node().args = ((3, *branch.graph.output_node().args[0][1:]),)


def _a_write(branch, sin):
    sin.target = aten.sin_.default


def _no_converter(branch, sin):
    sin.target = aten.special_i0.default


def _another_device(branch, sin):
    sin.meta["val"] = sin.meta["val"].to("meta")


@pytest.mark.parametrize(
    ("change", "rule", "message"),
    [
        (_another_dtype, "requires", "expected it to return float32"),
        (_another_shape, "requires", "expected it to return float32"),
        (_an_unknown_type, "requires", "to return"),
        (_a_number, "requires", "to return"),
        (_a_write, "requires", "only compute"),
        (_no_converter, "no-converter", "true_graph_0: aten.special_i0.default"),
        (_another_device, "device", "expected a tensor on cpu"),
    ],
)
def test_other_branches_are_refused(registry, change, rule, message):
    node = refused_graph(change)
    rejection = registry.reject(OpCall.from_node(node))
    assert (rejection.node, rejection.target, rejection.rule) == (node.name, "cond", rule)
    assert message in rejection.message


def test_calls_of_another_form_are_refused(registry):
    _, _, node = segment_of(linear)
    assert registry.reject(OpCall.from_node(node)) is None
    predicate = node.args[0]
    for other, rule in ((True, "dtype"), (node.args[3][0], "dtype")):
        node.args = (other, *node.args[1:])
        assert registry.reject(OpCall.from_node(node)).rule == rule
    predicate.meta["val"] = predicate.meta["val"].new_empty(2)
    node.args = (predicate, *node.args[1:])
    assert registry.reject(OpCall.from_node(node)).rule == "static"
    node.args = (*node.args[:3], ())
    assert registry.reject(OpCall.from_node(node)).rule == "requires"


def test_sizes_that_no_operand_tells_are_refused(registry):
    shapes = (None, {0: torch.export.Dim("rows", min=2, max=9)})

    def of_another_tensor(weight, p, x):
        rows = x.shape[0]
        return torch.cond(p, lambda w: w.sum() + rows, lambda w: w.sum() * rows, (weight + 1,))

    _, _, node = segment_of(of_another_tensor, shapes=shapes)
    rejection = registry.reject(OpCall.from_node(node))
    assert rejection.rule == "static"
    assert "expected sizes that the shapes of its operands tell" in rejection.message


def test_a_refusal_in_a_branch_names_the_call(converter):
    segment, program, node = segment_of(linear)
    branch = program.module.true_graph_0
    next(call for call in branch.graph.nodes if call.target is aten.matmul.default).target = aten.outer.default
    with pytest.raises(ConversionError, match="true_graph_0") as caught:
        converter.convert(segment, program)
    assert caught.value.node == node.name
