from __future__ import annotations

import math
import operator
import struct
import subprocess
import sys

import pytest
import torch

from torchkiln_core import PlanError, PlanFormatError
from torchkiln_runtime.kiln_file import load_program, save_program
from torchkiln_runtime.kiln_file.arguments import decode_argument, encode_argument
from torchkiln_runtime.kiln_file.targets import FUNCTIONS, function_name, function_named

aten = torch.ops.aten

ARGUMENTS = [
    None,
    True,
    False,
    0,
    1,
    -(2**53),
    2**63 - 1,
    -(2**200),
    10**4000,
    0.1,
    -0.0,
    5e-324,
    1e308,
    float("inf"),
    float("-inf"),
    float("nan"),
    complex(-0.0, float("inf")),
    "",
    "ünï\n\"'\x00\ud800",
    torch.float32,
    torch.float8_e5m2,
    torch.complex128,
    torch.device("cpu"),
    torch.device("cuda:3"),
    torch.device("meta"),
    torch.strided,
    torch.sparse_coo,
    torch.channels_last,
    torch.preserve_format,
    slice(None, 3, -1),
    Ellipsis,
    [],
    (),
    [1, (2.0, [None, (3,)])],
    {"a": [1], "node": 2, 3: (4,)},
    {},
]


def exact(value):
    """A value by kind and bits."""
    match value:
        case float():
            return struct.pack("<d", value) if not math.isnan(value) else "nan"
        case complex():
            return complex, exact(value.real), exact(value.imag)
        case list() | tuple():
            return "list" if isinstance(value, list) else "tuple", [exact(item) for item in value]
        case dict():
            return dict, [(exact(key), exact(item)) for key, item in value.items()]
        case slice():
            return slice, exact([value.start, value.stop, value.step])
    return type(value), value


@pytest.mark.parametrize("value", ARGUMENTS, ids=range(len(ARGUMENTS)))
def test_arguments_come_back_exactly(value, program_of, through_file):
    assert exact(decode_argument(encode_argument(value), {})) == exact(value)
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_function(operator.getitem, (x, value), {"other": [value, x]})
    graph.output(node)
    loaded = through_file(program_of(graph)).segments[0].graph.graph
    found = next(node for node in loaded.nodes if node.op == "call_function")
    assert exact(found.args[1]) == exact(node.args[1])
    assert exact(found.kwargs["other"][0]) == exact(node.kwargs["other"][0])
    assert found.kwargs["other"][1].name == "x"


@pytest.mark.parametrize(
    "value", [object(), torch.Generator(), {1, 2}, range(3), torch.ones(1), torch.qint8, b"x", len, {None: 1}, torch.bits8]
)
def test_other_arguments_are_refused_with_node_and_line(value, program_of, tmp_path):
    graph = torch.fx.Graph()
    node = graph.call_function(aten.relu.default, (graph.placeholder("x"),))
    node.meta["stack_trace"] = 'File "model.py", line 3, in forward\n  y = f(x)'
    graph.output(node)
    program = program_of(graph)
    # Set afterwards: FX itself cannot write most of these into its source code.
    node_in = next(node for node in program.segments[0].graph.graph.nodes if node.op == "call_function")
    node_in.args = (value,)
    with pytest.raises(PlanError, match=r"(?s)node relu.*model.py:3"):
        save_program(program, tmp_path / "a.kiln")


def test_integers_beyond_decimal_text_come_back():
    assert decode_argument(encode_argument(-(10**5000)), {}) == -(10**5000)


def test_functions_come_back():
    for name, function in FUNCTIONS.items():
        assert function_name(function) == name
        assert function_named(name) is function
    for operator_ in (aten.add.Tensor, aten.relu.default, aten.sym_size.int, aten._assert_scalar.default, torch.ops.prims.add.default):
        assert function_named(function_name(operator_)) is operator_
    assert function_named("quantized_decomposed.quantize_per_tensor.default").namespace == "quantized_decomposed"


def test_operators_of_modules_that_torch_does_not_import_come_back_in_a_new_process():
    script = "\n".join(
        [
            "import torch",
            "from torchkiln_runtime.kiln_file.targets import function_named",
            "assert not hasattr(torch.ops.onnx, 'RotaryEmbedding')",
            "print(function_named('onnx.RotaryEmbedding.opset23'))",
        ]
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "onnx.RotaryEmbedding.opset23"


def test_symbolic_arithmetic_runs_after_loading(program_of, through_file):
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    size = graph.call_function(aten.sym_size.int, (x, 0))
    half = graph.call_function(operator.floordiv, (size, 2))
    most = graph.call_function(torch.sym_max, (half, 3))
    up = graph.call_function(math.ceil, (graph.call_function(operator.truediv, (most, 2)),))
    graph.output((graph.call_function(aten.new_zeros.default, (x, [most, up])), size))
    loaded = through_file(program_of(graph)).segments[0].graph
    zeros, nine = loaded(torch.ones(9, dtype=torch.int16))
    assert (tuple(zeros.shape), zeros.dtype, nine) == ((4, 2), torch.int16, 9)


def test_names_come_back_even_where_fx_would_rename(program_of, through_file):
    graph = torch.fx.Graph()
    x = graph.placeholder("input")
    y = graph.call_function(aten.relu.default, (x,), name="add_1")
    x.name, y.name = "input", "add_7"
    graph.output((y,))
    loaded = through_file(program_of(graph)).segments[0].graph
    assert [node.name for node in loaded.graph.nodes] == ["input", "add_7", "output"]
    assert torch.equal(loaded(torch.tensor([-1.0, 2.0]))[0], torch.tensor([0.0, 2.0]))


def _higher_order():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    return graph, graph.call_function(torch.ops.higher_order.cond, (x, x, x, [x]))


def _function(target):
    graph = torch.fx.Graph()
    return graph, graph.call_function(target, (graph.placeholder("x"),))


def _method():
    graph = torch.fx.Graph()
    return graph, graph.call_method("relu", (graph.placeholder("x"),))


def _module():
    graph = torch.fx.Graph()
    return graph, graph.call_module("inner", (graph.placeholder("x"),))


@pytest.mark.parametrize(
    "make",
    [
        _higher_order,
        lambda: _function(lambda x: x),
        lambda: _function(torch.relu),
        lambda: _function(print),
        lambda: _function(aten.relu),
        lambda: _function(aten.from_file.default),
        lambda: _function(aten.save.default),
        _method,
        _module,
    ],
    ids="cond lambda torch print packet from_file save method module".split(),
)
def test_other_targets_are_refused_with_node_and_line(make, program_of, tmp_path):
    graph, node = make()
    node.meta["stack_trace"] = 'File "model.py", line 3, in forward\n  y = f(x)'
    graph.output(node)
    with pytest.raises(PlanError, match=rf"(?s)node {node.name}: .*model.py:3") as caught:
        save_program(program_of(graph, {"inner": torch.nn.ReLU()}), tmp_path / "a.kiln")
    assert not isinstance(caught.value, PlanFormatError)
    assert not (tmp_path / "a.kiln").exists()


def test_attributes_that_are_no_tensors_are_refused(program_of, tmp_path):
    graph = torch.fx.Graph()
    graph.output(graph.get_attr("inner"))
    with pytest.raises(PlanError, match="tensor"):
        save_program(program_of(graph, {"inner": torch.nn.ReLU()}), tmp_path / "a.kiln")


def test_a_graph_with_its_own_calling_convention_is_refused(program_of, tmp_path):
    graph = torch.fx.Graph()
    graph.output(graph.placeholder("x"))
    graph.set_codegen(type("Own", (torch.fx.graph.CodeGen,), {})())
    with pytest.raises(PlanError, match="calling convention"):
        save_program(program_of(graph), tmp_path / "a.kiln")


def test_a_custom_operator_must_be_registered_when_loading(program_of, tmp_path):
    with torch.library._scoped_library("kiln_file_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: 2 * x, "CompositeExplicitAutograd")
        graph = torch.fx.Graph()
        graph.output((graph.call_function(torch.ops.kiln_file_test.twice.default, (graph.placeholder("x"),)),))
        save_program(program_of(graph), tmp_path / "a.kiln")
        loaded = load_program(tmp_path / "a.kiln").segments[0].graph
        assert torch.equal(loaded(torch.ones(2))[0], torch.full((2,), 2.0))
    with pytest.raises(PlanFormatError, match=r"(?s)kiln_file_test\.twice\.default.*import the package|kiln_file_test"):
        load_program(tmp_path / "a.kiln")


class _Convolutional(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)

    def forward(self, x):
        y = torch.nn.functional.interpolate(self.norm(self.conv(x)), scale_factor=2.0)
        return y.flatten(1), x.shape[0] * 2 + y.sum(dtype=torch.float64), torch.arange(x.shape[0], device=x.device)


def test_an_exported_graph_computes_the_same_for_every_size(program_of, through_file):
    model = _Convolutional().eval()
    batch = torch.export.Dim("batch", min=2, max=16)
    exported = torch.export.export(model, (torch.randn(2, 3, 5, 5),), dynamic_shapes=({0: batch},)).run_decompositions()
    loaded = through_file(program_of(exported.graph, {})).segments[0].graph
    weights = [exported.state_dict[spec.target] for spec in exported.graph_signature.input_specs if spec.target in exported.state_dict]
    unused = len(exported.graph_signature.input_specs) - len(weights) - 1
    constants = list(exported.constants.values())[:unused]
    x = torch.randn(7, 3, 5, 5)
    with torch.no_grad():
        for found, expected in zip(loaded(*weights, *constants, x), model(x), strict=True):
            assert torch.equal(found, expected)
