"""Lowering: a program of any ATen operators to one of the operators that converters know."""

from torchkiln_lowering.decompositions.standard import standard_decompositions
from torchkiln_lowering.decompositions.table import Decomposition, Decompositions
from torchkiln_lowering.lower import AtenLowering
from torchkiln_lowering.passes.standard import standard_pipeline
from torchkiln_lowering.pipeline import Pass, Pipeline
from torchkiln_lowering.registry import (
    apply_lowering_passes,
    aten_lowering_pass,
    default_pipeline,
    dump_lowering_passes,
    remove_lowering_pass,
)

__all__ = [
    "AtenLowering",
    "Decomposition",
    "Decompositions",
    "Pass",
    "Pipeline",
    "apply_lowering_passes",
    "aten_lowering_pass",
    "default_pipeline",
    "dump_lowering_passes",
    "remove_lowering_pass",
    "standard_decompositions",
    "standard_pipeline",
]
