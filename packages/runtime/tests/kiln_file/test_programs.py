from __future__ import annotations

import dataclasses
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import sympy
import torch

from torchkiln_core import (
    Binding,
    InternalError,
    Interpreter,
    Network,
    Plan,
    PlanError,
    PlanFormatError,
    Rejection,
    Target,
    source_of,
    to_record,
)
from torchkiln_runtime.kiln_file import load_program, save_program


def test_everything_comes_back(program, saved):
    loaded = load_program(saved)
    assert loaded.signature == program.signature
    assert loaded.rejections == program.rejections
    assert [(segment.name, segment.kind, segment.calls) for segment in loaded.segments] == [
        (segment.name, segment.kind, segment.calls) for segment in program.segments
    ]
    assert loaded.weights.keys() == program.weights.keys()
    for name, tensor in program.weights.items():
        assert torch.equal(loaded.weights[name].isnan(), tensor.isnan())
        assert torch.equal(loaded.weights[name].nan_to_num(), tensor.detach().nan_to_num())
    engine, kept = loaded.segments
    assert (engine.graph, kept.network, kept.plans) == (None, None, ())
    assert to_record(engine.network)[0] == to_record(program.segments[0].network)[0]


def test_plans_come_back(program, saved):
    for plan, loaded in zip(program.segments[0].plans, load_program(saved).segments[0].plans, strict=True):
        assert torch.equal(plan.data, loaded.data)
        for field in dataclasses.fields(Plan):
            if field.name != "data":
                assert getattr(plan, field.name) == getattr(loaded, field.name), field.name


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Plan, "data inputs outputs symbols target key build_ms allow_tf32 profile inner_sizes"),
        (Binding, "name dtype shape"),
        (Target, "library version gpus"),
        (Rejection, "target node rule message where"),
    ],
)
def test_no_field_is_forgotten(kind, fields):
    assert [field.name for field in dataclasses.fields(kind)] == fields.split(), "teach plan_record the new fields, then this test"


def test_loaded_parts_compute_the_same(program, saved):
    loaded = load_program(saved)
    x = torch.tensor([1.0, -1.0, 2.0, float("-inf")])
    expected = program.segments[1].graph(x, program.weights["layer.weight"])[0]
    assert torch.equal(loaded.segments[1].graph(x, loaded.weights["layer.weight"])[0].nan_to_num(), expected.nan_to_num())
    (engine,) = Interpreter(loaded.segments[0].network)(x)
    (reference,) = Interpreter(program.segments[0].network)(x)
    assert torch.equal(engine.nan_to_num(), reference.nan_to_num())


def test_stitched_graph_runs_once_its_engines_are_bound(program, saved):
    loaded = load_program(saved)
    x = torch.ones(4)
    with pytest.raises(InternalError, match="engine_0"):
        loaded.stitched(x, loaded.weights["layer.weight"])
    loaded.stitched.engine_0 = torch.nn.Identity()
    loaded.stitched.engine_0.forward = Interpreter(loaded.segments[0].network).__call__
    (result,) = loaded.stitched(x, torch.ones(4))
    assert torch.equal(result.nan_to_num(7.0), torch.tensor([3.5, -0.0, 7.0, 2.5]))


def test_nodes_keep_their_source_line(saved):
    graph = load_program(saved).segments[1].graph.graph
    assert [source_of(node) for node in graph.nodes if node.target is torch.ops.aten.add.Tensor] == [
        "model.py:12 in forward: return x + 2 * self.weight (module: layers.0)"
    ]
    assert not any("val" in node.meta for node in graph.nodes)


def test_a_fresh_process_computes_the_same(program, saved):
    script = """
import sys, torch
from torchkiln_core import Interpreter
from torchkiln_runtime.kiln_file import load_program
program = load_program(sys.argv[1])
x = torch.tensor([1.0, -1.0, 2.0, 0.3])
print(program.segments[1].graph(x, program.weights["layer.weight"])[0].tolist(), Interpreter(program.segments[0].network)(x)[0].tolist())
"""
    result = subprocess.run([sys.executable, "-c", script, str(saved)], capture_output=True, text=True, check=True)
    x = torch.tensor([1.0, -1.0, 2.0, 0.3])
    expected = (
        program.segments[1].graph(x, program.weights["layer.weight"])[0].tolist(),
        Interpreter(program.segments[0].network)(x)[0].tolist(),
    )
    assert result.stdout.strip() == f"{expected[0]} {expected[1]}"


def test_the_file_is_a_plain_zip_without_pickle(saved):
    with zipfile.ZipFile(saved) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [
            "tensors.safetensors",
            "plans/engine_0/0.plan",
            "plans/engine_0/1.plan",
            "program.json",
            "manifest.json",
        ]
        assert archive.read("plans/engine_0/0.plan") == b"plan"


def test_equal_programs_are_equal_files(program, saved, tmp_path):
    save_program(load_program(saved), tmp_path / "again.kiln")
    assert (tmp_path / "again.kiln").read_bytes() == saved.read_bytes()


def test_saving_replaces_at_once_or_leaves_the_old_file(program, saved):
    before = saved.read_bytes()
    broken = dataclasses.replace(program, weights={"a": torch.empty(2, device="meta")})
    with pytest.raises(PlanError, match="weights:a"):
        save_program(broken, saved)
    assert saved.read_bytes() == before
    save_program(program, saved)
    assert [item.name for item in saved.parent.iterdir()] == [saved.name]
    assert stat.S_IMODE(saved.stat().st_mode) & stat.S_IRUSR


@pytest.mark.parametrize("path", ["missing/model.kiln", ".", "n" * 300, "file/model.kiln"])
def test_a_place_that_cannot_be_written_is_an_error(program, tmp_path, path):
    (tmp_path / "file").touch()
    with pytest.raises(PlanError, match="cannot be written"):
        save_program(program, tmp_path / path)
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


@pytest.mark.parametrize("signature", [{"a": (1, 2)}, {1: "a"}, {"a": float("nan")}, {"a": object()}, {"a": {1, 2}}])
def test_a_signature_that_is_no_json_is_refused(program, tmp_path, signature):
    with pytest.raises(PlanError, match="JSON"):
        save_program(dataclasses.replace(program, signature=signature), tmp_path / "a.kiln")


def test_segments_that_contradict_themselves_are_refused(program, tmp_path):
    engine, kept = program.segments
    for segments in (
        (engine, engine),
        (dataclasses.replace(engine, name="../x"), kept),
        (dataclasses.replace(engine, network=None), kept),
        (engine, dataclasses.replace(kept, network=Network())),
        (engine, dataclasses.replace(kept, plans=engine.plans)),
        (engine, dataclasses.replace(kept, kind="other")),
    ):
        with pytest.raises(PlanError, match="expected"):
            save_program(dataclasses.replace(program, segments=segments), tmp_path / "a.kiln")
    assert list(Path(tmp_path).iterdir()) == []


def test_a_size_outside_the_grammar_is_refused_when_saving(program, tmp_path):
    engine = program.segments[0]
    symbol = sympy.Symbol("s0", integer=True, nonnegative=True)
    plan = dataclasses.replace(engine.plans[0], outputs=(Binding("y", torch.float32, (sympy.floor(symbol / 2),)),))
    with pytest.raises(PlanError, match="binding y") as caught:
        save_program(
            dataclasses.replace(program, segments=(dataclasses.replace(engine, plans=(plan,)), program.segments[1])), tmp_path / "a"
        )
    assert not isinstance(caught.value, PlanFormatError)


def test_plan_data_on_another_device_or_of_another_dtype_is_refused(program, tmp_path):
    engine = program.segments[0]
    for data in (torch.zeros(3), torch.zeros(1, 3, dtype=torch.uint8), torch.empty(3, dtype=torch.uint8, device="meta")):
        plan = dataclasses.replace(engine.plans[0], data=data)
        with pytest.raises(PlanError, match="plan 0"):
            save_program(
                dataclasses.replace(program, segments=(dataclasses.replace(engine, plans=(plan,)), program.segments[1])), tmp_path / "a"
            )
