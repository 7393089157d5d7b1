"""The types, stage protocols, network record and errors that torchkiln's packages share."""

from __future__ import annotations

from torchkiln_core.call import OpCall, module_path, source_of
from torchkiln_core.constant_values import ConstantValues
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
from torchkiln_core.interpreter import Interpreter
from torchkiln_core.network import Layer, Network, Step, Value
from torchkiln_core.options import (
    BuildOptions,
    DiagnosticOptions,
    ExtensionOptions,
    LoweringOptions,
    Options,
    PartitionOptions,
    RuntimeOptions,
)
from torchkiln_core.partition import Partition, Segment
from torchkiln_core.plan import Binding, Plan, Target
from torchkiln_core.profile import Profile
from torchkiln_core.program import InputKind, Program, ProgramInput
from torchkiln_core.record import from_record, network_key, on_host, to_record
from torchkiln_core.rejection import Rejection, Requires, SupportOracle
from torchkiln_core.size import Size
from torchkiln_core.spec import Dim, DimRange, TensorSpec

__all__ = [
    "Binding",
    "BuildError",
    "BuildOptions",
    "CompileError",
    "ConstantValues",
    "ConversionError",
    "DiagnosticOptions",
    "Dim",
    "DimRange",
    "ExportError",
    "ExtensionOptions",
    "InputKind",
    "InternalError",
    "Interpreter",
    "KilnError",
    "Layer",
    "LoweringError",
    "LoweringOptions",
    "Network",
    "OpCall",
    "Options",
    "Partition",
    "PartitionError",
    "PartitionOptions",
    "Plan",
    "PlanError",
    "PlanFormatError",
    "PlanTargetMismatch",
    "Profile",
    "Program",
    "ProgramInput",
    "Rejection",
    "Requires",
    "RuntimeOptions",
    "Segment",
    "ShapeOutOfProfile",
    "Size",
    "Step",
    "SupportOracle",
    "Target",
    "TensorSpec",
    "Value",
    "from_record",
    "module_path",
    "network_key",
    "on_host",
    "source_of",
    "to_record",
]
