"""torchkiln compiles PyTorch programs into NVIDIA TensorRT engines."""

from __future__ import annotations

from torchkiln.aot import compile
from torchkiln.compiled_module import CompiledModule, LoadedModule
from torchkiln.inputs import Input
from torchkiln.report import Report, SegmentReport
from torchkiln.saving import load, save
from torchkiln.stages import FallbackWarning
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
    Rejection,
    ShapeOutOfProfile,
)

__all__ = [
    "BuildError",
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
    "Rejection",
    "Report",
    "SegmentReport",
    "ShapeOutOfProfile",
    "compile",
    "load",
    "save",
]
