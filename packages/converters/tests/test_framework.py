"""The decorator's checks, the registry, and the stage that writes a segment as a network."""

from __future__ import annotations

import operator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from torchkiln_converters import (
    ConverterRegistry,
    Equals,
    NetworkConverter,
    Operand,
    Requires,
    Result,
    Support,
    builtin_converters,
    converter,
    default_registry,
)
from torchkiln_converters.registry import converters_in
from torchkiln_core import ConversionError, InputKind, InternalError, Interpreter, Network, OpCall, Program, ProgramInput, Segment, Value
from torchkiln_core.layers import Activation, ActivationKind, Constant, Shuffle
from torchkiln_testing import OpCase, trace_call

aten = torch.ops.aten
BUILTIN = ConverterRegistry(builtin_converters())


def segment_of(graph, inputs, outputs, weights=None):
    """A program that is one engine segment."""
    weights = weights or {}
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    items = [ProgramInput(name, InputKind.USER) for name in inputs] + [
        ProgramInput(name, InputKind.WEIGHT, f"m.{name}") for name in weights
    ]
    program = Program(module, tuple(items), weights, {})
    return Segment("engine_0", "engine", module, tuple(inputs), tuple(weights), tuple(outputs), ()), program


def placeholder(graph, name, tensor, mode):
    node = graph.placeholder(name)
    node.meta["val"] = mode.from_tensor(tensor)
    return node


def call(graph, op, *args):
    node = graph.call_function(op, args)
    fakes = torch.fx.node.map_arg(args, lambda item: item.meta["val"])
    with next(item for item in graph.nodes if "val" in item.meta).meta["val"].fake_mode:
        node.meta["val"] = op(*fakes)
    return node


def relu(net: Network, self: Value) -> Value:
    """An identity by way of ELU, which no built-in converter writes."""
    return net.add(Activation(ActivationKind.ELU, 1.0), self)


OWN_RELU = converter(aten.relu.default, Support(dtypes=frozenset({torch.float32})))(relu)


def test_an_unknown_parameter_is_an_error_at_import():
    def wrong(net: Network, this: Value) -> Value:
        return this

    with pytest.raises(TypeError, match="this not in aten::relu"):
        converter(aten.relu.default)(wrong)


def test_a_missing_parameter_must_be_covered():
    def wrong(net: Network, self: Value, alpha: float) -> Value:
        return self

    with pytest.raises(TypeError, match="input_scale, scale"):
        converter(aten.elu.default)(wrong)
    covered = Support(rules=(Equals("scale", 1),), ignores=("input_scale",))
    assert converter(aten.elu.default, covered)(wrong).targets == (aten.elu.default,)


def test_an_annotation_must_fit_the_schema():
    def wrong(net: Network, self: Value, alpha: tuple[int, ...]) -> Value:
        return self

    with pytest.raises(TypeError, match="does not arrive as INTS"):
        converter(aten.elu.default, Support(ignores=("scale", "input_scale")))(wrong)


def test_an_annotation_must_say_how_an_argument_arrives():
    def wrong(net: Network, self: torch.Tensor) -> Value:
        raise NotImplementedError

    with pytest.raises(TypeError, match="no argument arrives as"):
        converter(aten.relu.default)(wrong)


def test_an_argument_that_may_be_none_must_be_annotated_so():
    def wrong(net: Network, input: Value, weight: Value, bias: Value) -> Value:
        return input

    with pytest.raises(TypeError, match="bias"):
        converter(aten.convolution.default, Support(ignores=("stride", "padding", "dilation", "transposed", "output_padding", "groups")))(
            wrong
        )


def test_the_first_parameter_is_the_network():
    def wrong(self: Value) -> Value:
        return self

    with pytest.raises(TypeError, match="net: Network"):
        converter(aten.relu.default)(wrong)


def test_a_registry_is_a_value():
    extended = BUILTIN.extend(OWN_RELU)
    assert extended[aten.relu.default] is OWN_RELU
    assert BUILTIN[aten.relu.default] is not OWN_RELU
    assert extended.targets == BUILTIN.targets
    with pytest.raises(InternalError, match="no converter for"):
        ConverterRegistry()[aten.relu.default]


def test_converters_are_found_in_modules_and_iterables():
    assert converters_in(OWN_RELU) == (OWN_RELU,)
    assert converters_in([OWN_RELU]) == (OWN_RELU,)
    with pytest.raises(TypeError, match="expected converters"):
        converters_in([relu])


class Declared:
    """An entry point of an installed package."""

    name = "theirs"

    def load(self):
        return OWN_RELU


def test_packages_declare_converters(monkeypatch):
    asked = []
    monkeypatch.setattr("importlib.metadata.entry_points", lambda *, group: asked.append(group) or [Declared()])
    assert default_registry()[aten.relu.default] is OWN_RELU
    assert asked == ["torchkiln.converters"]


def test_every_operator_has_one_builtin_converter():
    targets = [target for item in builtin_converters() for target in item.targets]
    assert len(targets) == len(set(targets))


def test_every_converter_says_what_it_is():
    for item in builtin_converters():
        assert item.function.__name__ != "function", item.targets


def test_an_own_rule_refuses_in_its_words():
    rule = Requires("a full moon", lambda call: False)
    own = converter(aten.relu.default, Support(rules=(rule,)))(relu)
    rejection = ConverterRegistry([own]).reject(trace_call(OpCase(aten.relu.default, (torch.ones(2),))).call)
    assert (rejection.rule, rejection.message) == ("requires", "requires a full moon")


def test_a_refused_call_is_a_conversion_error_with_its_place():
    mode, graph = FakeTensorMode(), torch.fx.Graph()
    x = placeholder(graph, "x", torch.ones(2), mode)
    y = call(graph, aten.lgamma.default, x)
    y.meta["stack_trace"] = '  File "model.py", line 7, in forward\n    return x.lgamma()'
    graph.output((y,))
    with pytest.raises(ConversionError, match=r"no-converter") as caught:
        NetworkConverter(BUILTIN).convert(*segment_of(graph, ["x"], ["y"]))
    assert caught.value.node == "lgamma_default"
    assert caught.value.where == "model.py:7 in forward: return x.lgamma()"


def test_a_broken_contract_is_an_internal_error():
    def wrong(net: Network, self: Value, result: Result) -> Value:
        return net.add(Shuffle(dims=(1, *self.shape)), self)

    case = trace_call(OpCase(aten.relu.default, (torch.ones(2),)))
    registry = ConverterRegistry([converter(aten.relu.default)(wrong)])
    with pytest.raises(InternalError, match=r"aten.relu.default, result 0: expected torch.float32 \[2\]"):
        NetworkConverter(registry).convert(case.segment, case.program)


def test_a_failing_converter_is_an_internal_error_that_names_the_call():
    def wrong(net: Network, self: Value, other: Operand) -> Value:
        raise ZeroDivisionError("oops")

    case = trace_call(OpCase(aten.mul.Tensor, (torch.ones(2), 2)))
    registry = ConverterRegistry([converter(aten.mul.Tensor)(wrong)])
    with pytest.raises(InternalError, match=r"converter of aten.mul.Tensor failed .*oops"):
        NetworkConverter(registry).convert(case.segment, case.program)


def test_weights_are_constants_by_reference_and_named_where_they_are_read():
    mode, graph = FakeTensorMode(), torch.fx.Graph()
    weight, unread = torch.ones(3, 2), torch.ones(1)
    x = placeholder(graph, "x", torch.ones(4, 2), mode)
    w = placeholder(graph, "w", weight, mode)
    placeholder(graph, "u", unread, mode)
    graph.output((call(graph, aten.linear.default, x, w),))
    network = NetworkConverter(BUILTIN).convert(*segment_of(graph, ["x"], ["y"], {"w": weight, "u": unread}))
    constants = [step for step in network.steps if isinstance(step.layer, Constant)]
    assert [step.weight for step in constants] == ["m.w"]
    assert constants[0].layer.tensor is weight


def test_inputs_constants_and_repeated_values_leave_through_an_identity():
    mode, graph = FakeTensorMode(), torch.fx.Graph()
    weight, given = torch.arange(2.0), torch.tensor([3.0, -4.0])
    x = placeholder(graph, "x", given, mode)
    w = placeholder(graph, "w", weight, mode)
    y = call(graph, aten.relu.default, x)
    graph.output((x, w, y, call(graph, aten.clone.default, y)))
    network = NetworkConverter(BUILTIN).convert(*segment_of(graph, ["x"], ["a", "b", "c", "d"], {"w": weight}))
    values = [value for _, value in network.outputs]
    assert len(set(values)) == 4
    assert not any(value in network.inputs or value.constant is not None for value in values)
    got = Interpreter(network)(given)
    for have, want in zip(got, (given, weight, given.relu(), given.relu()), strict=True):
        assert torch.equal(have, want)


@pytest.mark.parametrize("op", [aten.gelu.default, aten.relu.default, aten.sigmoid.default])
def test_activations_of_a_number_have_no_shape_around_them(op):
    """The builder of TensorRT-RTX 1.6 crashes the process on a gelu and a relu of one number with reshapes on both sides."""
    traced = trace_call(OpCase(op, (torch.tensor(0.5),)))
    network = NetworkConverter(BUILTIN).convert(traced.segment, traced.program)
    assert Activation in [type(step.layer) for step in network.steps]
    assert Shuffle not in [type(step.layer) for step in network.steps]


def test_layers_are_named_after_the_call_and_point_at_the_source():
    mode, graph = FakeTensorMode(), torch.fx.Graph()
    x = placeholder(graph, "x", torch.ones(2), mode)
    y = call(graph, aten.relu.default, x)
    y.meta["stack_trace"] = '  File "model.py", line 3, in forward\n    x.relu()'
    graph.output((y,))
    (step,) = NetworkConverter(BUILTIN).convert(*segment_of(graph, ["x"], ["y"])).steps
    assert step.name.startswith("relu_default/")
    assert step.where == "model.py:3 in forward: x.relu()"


def test_getitem_picks_results():
    mode, graph = FakeTensorMode(), torch.fx.Graph()
    values = torch.tensor([1.0, 5.0, 3.0])
    x = placeholder(graph, "x", values, mode)
    pair = call(graph, aten.topk.default, x, 2)
    item = graph.call_function(operator.getitem, (pair, 1))
    item.meta["val"] = pair.meta["val"][1]
    graph.output((item,))
    network = NetworkConverter(BUILTIN).convert(*segment_of(graph, ["x"], ["indices"]))
    assert Interpreter(network)(values)[0].tolist() == [1, 2]


def test_a_result_that_a_converter_leaves_out_may_not_be_read():
    def first_only(net: Network, self: Value) -> tuple[Value | None, ...]:
        return self, None

    mode, graph = FakeTensorMode(), torch.fx.Graph()
    x = placeholder(graph, "x", torch.ones(()), mode)
    pair = call(graph, aten.max.dim, x, 0)
    item = graph.call_function(operator.getitem, (pair, 1))
    item.meta["val"] = pair.meta["val"][1]
    graph.output((item,))
    own = converter(aten.max.dim, Support(ignores=("dim", "keepdim")))(first_only)
    with pytest.raises(InternalError, match="leaves out result 1"):
        NetworkConverter(ConverterRegistry([own])).convert(*segment_of(graph, ["x"], ["y"]))


def test_a_call_decodes_its_arguments_by_schema_names():
    decoded = trace_call(OpCase(aten.add.Tensor, (torch.ones(2), 2))).call
    assert isinstance(decoded, OpCall)
    assert decoded.arguments["alpha"] == 1
