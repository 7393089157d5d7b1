"""torchkiln compiles PyTorch programs into NVIDIA TensorRT engines."""

from __future__ import annotations

from torchkiln import backends, lowering, ops
from torchkiln.aot import compile
from torchkiln.compiled_module import CompiledModule, LoadedModule
from torchkiln.explaining import explain
from torchkiln.fallback_warning import FallbackWarning
from torchkiln.inputs import Input
from torchkiln.logs import configure_logs, open_logs
from torchkiln.report import BorderValue, CallReport, Report, SegmentReport, Shares, SizeReport, StaticEngineReport
from torchkiln.saving import load, save
from torchkiln_core import (
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
    Profile,
    Rejection,
    ShapeOutOfProfile,
)

__all__ = [
    "BorderValue",
    "BuildError",
    "CallReport",
    "CompileError",
    "CompiledModule",
    "ConversionError",
    "ExportError",
    "FallbackWarning",
    "Input",
    "InternalError",
    "KilnError",
    "LoadedModule",
    "LoweringError",
    "PartitionError",
    "PlanError",
    "PlanFormatError",
    "PlanTargetMismatch",
    "Profile",
    "Rejection",
    "Report",
    "SegmentReport",
    "ShapeOutOfProfile",
    "Shares",
    "SizeReport",
    "StaticEngineReport",
    "backends",
    "compile",
    "configure_logs",
    "explain",
    "load",
    "lowering",
    "ops",
    "save",
]

open_logs()
