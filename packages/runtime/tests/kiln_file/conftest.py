from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from torchkiln_core import Binding, Network, Plan, Rejection, Target
from torchkiln_core.layers import Activation, ActivationKind, Elementwise, ElementwiseOp
from torchkiln_runtime.kiln_file import SavedProgram, SavedSegment, load_program, save_program

aten = torch.ops.aten
S0 = sympy.Symbol("s0", integer=True, nonnegative=True)


def make_torch_graph() -> torch.fx.GraphModule:
    """``(x + weight) * scale``."""
    graph = torch.fx.Graph()
    x, weight = graph.placeholder("x"), graph.placeholder("weight")
    scale = graph.get_attr("tables.scale")
    total = graph.call_function(aten.add.Tensor, (x, weight), {"alpha": 2})
    total.meta["stack_trace"] = '  File "model.py", line 12, in forward\n    return x + 2 * self.weight'
    total.meta["nn_module_stack"] = {"L": ("", "Model"), "M": ("layers.0", "Layer")}
    graph.output((graph.call_function(aten.mul.Tensor, (total, scale)),))
    return torch.fx.GraphModule({"tables.scale": torch.tensor([1.0, -0.0, float("inf"), 0.5])}, graph)


def make_network(constant: torch.Tensor) -> Network:
    """``relu(x) * constant``."""
    net = Network()
    x = net.input("x", torch.float32, (4,))
    relu = net.add(Activation(ActivationKind.RELU), x)
    net.output("y", net.add(Elementwise(ElementwiseOp.PROD), relu, net.constant(constant, "scale")))
    return net


def make_plan(data: bytes, gpu: str) -> Plan:
    return Plan(
        data=torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8),
        inputs=(Binding("x", torch.bfloat16, (S0, 4, 2 * S0 + 1)),),
        outputs=(Binding("y", torch.float8_e4m3fn, (FloorDiv(S0 + 1, 2), 1)), Binding("z", torch.bool, ())),
        symbols=(("s0", 0, 0),),
        target=Target("tensorrt_rtx", "1.6.1.120", (gpu, "sm_90")),
        key="0f" * 32,
        build_ms=0.1,
        allow_tf32=gpu != "current",
        profile="large" if gpu == "current" else "",
        inner_sizes=(S0, FloorDiv(S0, 2)) if gpu == "current" else (),
    )


def make_stitched() -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    x, weight = graph.placeholder("x"), graph.placeholder("weight")
    first = graph.call_function(operator.getitem, (graph.call_module("engine_0", (x,)), 0))
    second = graph.call_function(operator.getitem, (graph.call_module("torch_1", (first, weight)), 0))
    graph.output((second,))
    return torch.fx.GraphModule({"engine_0": torch.nn.Identity(), "torch_1": torch.nn.Identity()}, graph)


def make_program() -> SavedProgram:
    weight = torch.nn.Parameter(torch.tensor([1.5, -2.0, float("nan"), 3.0]))
    engine = SavedSegment(
        "engine_0",
        "engine",
        ("aten.relu.default",),
        make_network(weight.detach()),
        None,
        (make_plan(b"plan", "sm_89"), make_plan(b"", "sm_80")),
    )
    return SavedProgram(
        stitched=make_stitched(),
        segments=(engine, SavedSegment("torch_1", "torch", ("aten.add.Tensor", "aten.mul.Tensor"), None, make_torch_graph(), ())),
        weights={"layer.weight": weight, "counter": torch.tensor(7)},
        signature={"in": ["x"], "dims": {"s0": [1, 8]}, "text": "ünï", "number": 0.1, "none": None},
        rejections=(Rejection("aten.add.Tensor", "add", "no-converter", "expected ...", "model.py:12"), Rejection("a", "b", "c", "d")),
    )


@pytest.fixture
def program() -> SavedProgram:
    return make_program()


@pytest.fixture
def saved(tmp_path: Path, program: SavedProgram) -> Path:
    path = tmp_path / "model.kiln"
    save_program(program, path)
    return path


@pytest.fixture
def through_file(tmp_path: Path) -> Callable[[SavedProgram], SavedProgram]:
    """Saves a program and loads it."""

    def run(program: SavedProgram) -> SavedProgram:
        save_program(program, tmp_path / "through.kiln")
        return load_program(tmp_path / "through.kiln")

    return run


@pytest.fixture
def program_of() -> Callable[..., SavedProgram]:
    """A program of one torch segment, or of weights alone."""

    def make(graph: torch.fx.Graph | None = None, attributes: dict[str, Any] | None = None, **changes: Any) -> SavedProgram:
        stitched = torch.fx.Graph()
        stitched.output(())
        segments = ()
        if graph is not None:
            segments = (SavedSegment("torch_0", "torch", (), None, torch.fx.GraphModule(attributes or {}, graph), ()),)
        fields = {"segments": segments, "weights": {}, "signature": {}, "rejections": ()} | changes
        return SavedProgram(stitched=torch.fx.GraphModule({}, stitched), **fields)

    return make
