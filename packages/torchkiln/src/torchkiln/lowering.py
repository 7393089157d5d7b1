"""The passes and decompositions that programs go through: what ``torchkiln_lowering`` offers, under the name of the product."""

from __future__ import annotations

from torchkiln_lowering import (
    Decomposition,
    Decompositions,
    Pass,
    Pipeline,
    apply_lowering_passes,
    aten_lowering_pass,
    default_pipeline,
    dump_lowering_passes,
    remove_lowering_pass,
    standard_decompositions,
    standard_pipeline,
)

__all__ = [
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
