"""Layout of messages and the tree of errors."""

from __future__ import annotations

import pytest

from torchkiln_core import errors
from torchkiln_core.errors import (
    BuildError,
    CompileError,
    ConversionError,
    ExportError,
    InternalError,
    KilnError,
    LoweringError,
    PartitionError,
    PlanError,
    PlanFormatError,
    PlanTargetMismatch,
    ShapeOutOfProfile,
)

STAGES = {
    ExportError: "export",
    LoweringError: "lowering",
    PartitionError: "partition",
    ConversionError: "convert",
    BuildError: "build",
    CompileError: "compile",
}


@pytest.mark.parametrize(("kind", "stage"), STAGES.items(), ids=lambda item: getattr(item, "__name__", item))
def test_a_compile_error_says_stage_node_where_and_fix(kind, stage):
    error = kind("relu: expected float32, got int8", node="relu_1", where="m.py:3 in forward: x.relu()", fix="cast x")
    assert str(error).splitlines() == [
        f"{stage}: relu: expected float32, got int8",
        "  node: relu_1",
        "  where: m.py:3 in forward: x.relu()",
        "  fix: cast x",
    ]
    assert (error.stage, error.node, error.fix) == (stage, "relu_1", "cast x")
    assert isinstance(error, CompileError)


def test_what_is_unknown_is_left_out():
    assert str(BuildError("no memory")) == "build: no memory"
    assert str(CompileError("m", stage="capture", fix="f")) == "capture: m\n  fix: f"
    assert str(PlanFormatError("cut off")) == "cut off"
    assert str(PlanTargetMismatch("sm_86 plan on sm_89", fix="rebuild")) == "sm_86 plan on sm_89\n  fix: rebuild"
    assert str(InternalError("m")) == "m"
    assert str(InternalError("m", layer="relu/Activation", where="m.py:3")) == "m\n  layer: relu/Activation\n  where: m.py:3"


def test_the_tree_is_the_one_that_is_drawn():
    drawn = errors.__doc__ or ""
    parents = {
        PlanError: KilnError,
        PlanFormatError: PlanError,
        PlanTargetMismatch: PlanError,
        ShapeOutOfProfile: KilnError,
        InternalError: KilnError,
        CompileError: KilnError,
    } | {kind: CompileError for kind in STAGES if kind is not CompileError}
    for kind, parent in parents.items():
        assert kind.__bases__ == (parent,)
        assert kind.__name__ in drawn
