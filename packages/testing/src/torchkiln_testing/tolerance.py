"""The one table of tolerances, by dtype and class of operator."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch


class OpClass(enum.Enum):
    """What bounds the error of an operator."""

    EXACT = "exact"
    """Moves or compares values: shape operators, indexing, integer arithmetic."""
    POINTWISE = "pointwise"
    """A few roundings per element."""
    GATE = "gate"
    """The operand times a gate in [0, 1], whose rounding counts by the operand's size also where the gate is nearly shut."""
    REDUCTION = "reduction"
    """Sums along an axis: softmax, norms, means."""
    PARTIAL = "partial"
    """Sums of partial results that are rounded themselves, which counts by their size also where later terms cancel them."""
    MATMUL = "matmul"
    """Long sums of products: matrix products, convolutions, attention."""
    MODEL = "model"
    """A whole network; ``atol`` scales with the largest magnitude of the expected tensor."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """``|got - expected| <= atol + rtol * |expected|``."""

    rtol: float
    atol: float


_EXACT = Tolerance(0.0, 0.0)
TOLERANCES: Mapping[tuple[torch.dtype, OpClass], Tolerance] = MappingProxyType(
    {
        (torch.float32, OpClass.POINTWISE): Tolerance(1e-5, 1e-6),
        (torch.float32, OpClass.GATE): Tolerance(1e-5, 1e-6),
        (torch.float32, OpClass.REDUCTION): Tolerance(1e-5, 2e-6),
        (torch.float32, OpClass.PARTIAL): Tolerance(1e-5, 2e-6),
        (torch.float32, OpClass.MATMUL): Tolerance(1e-4, 2e-5),
        (torch.float32, OpClass.MODEL): Tolerance(1e-4, 1e-4),
        (torch.float16, OpClass.POINTWISE): Tolerance(2e-3, 1e-5),
        (torch.float16, OpClass.GATE): Tolerance(2e-3, 1e-5),
        (torch.float16, OpClass.REDUCTION): Tolerance(4e-3, 1e-4),
        # TensorRT-RTX errs as if it rounded what a group norm shifts, and the partial sums of a running sum, as PyTorch does on a GPU: half
        # a unit in the last place of numbers up to 8.
        (torch.float16, OpClass.PARTIAL): Tolerance(4e-3, 2e-3),
        # In plans for a range of sizes TensorRT-RTX errs as if it rounded a convolution before the bias: half a unit in the last place of
        # a sum up to 16, which may be all that is left where the bias cancels it.
        (torch.float16, OpClass.MATMUL): Tolerance(5e-3, 4e-3),
        (torch.float16, OpClass.MODEL): Tolerance(1e-2, 1e-2),
        (torch.bfloat16, OpClass.POINTWISE): Tolerance(1.6e-2, 1e-5),
        # TensorRT-RTX rounds 1 + erf(x): half a unit in the last place of a number up to 2, times half an operand up to 4.
        (torch.bfloat16, OpClass.GATE): Tolerance(1.6e-2, 8e-3),
        (torch.bfloat16, OpClass.REDUCTION): Tolerance(3.2e-2, 1e-3),
        (torch.bfloat16, OpClass.PARTIAL): Tolerance(3.2e-2, 1.6e-2),
        (torch.bfloat16, OpClass.MATMUL): Tolerance(3.2e-2, 1.6e-2),
        (torch.bfloat16, OpClass.MODEL): Tolerance(5e-2, 5e-2),
        (torch.float64, OpClass.POINTWISE): Tolerance(1e-12, 1e-12),
        (torch.float64, OpClass.GATE): Tolerance(1e-12, 1e-12),
        (torch.float64, OpClass.REDUCTION): Tolerance(1e-12, 1e-12),
        (torch.float64, OpClass.PARTIAL): Tolerance(1e-12, 1e-12),
        (torch.float64, OpClass.MATMUL): Tolerance(1e-12, 1e-12),
        (torch.float64, OpClass.MODEL): Tolerance(1e-10, 1e-10),
    }
)
"""Tolerances of floating dtypes; every other dtype, and ``OpClass.EXACT``, is compared exactly."""


def tolerance(dtype: torch.dtype, op_class: OpClass) -> Tolerance:
    """The tolerance of a dtype (complex counts as its real dtype) and class."""
    return TOLERANCES.get((dtype.to_real(), op_class) if dtype.is_complex else (dtype, op_class), _EXACT)
