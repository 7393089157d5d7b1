"""Development kit: the tolerance table, the comparison with eager PyTorch, and the checks of one operator call and of one lowering pass."""

from __future__ import annotations

from torchkiln_testing.compare import assert_same, assert_same_tensor
from torchkiln_testing.operators import OpCase, SizeOf, TracedCall, check_op, check_op_in, trace_call
from torchkiln_testing.rewrites import assert_keeps, assert_rewrites
from torchkiln_testing.tolerance import TOLERANCES, OpClass, Tolerance, tolerance
from torchkiln_testing.truth import eager_truth

__all__ = [
    "TOLERANCES",
    "OpCase",
    "OpClass",
    "SizeOf",
    "Tolerance",
    "TracedCall",
    "assert_keeps",
    "assert_rewrites",
    "assert_same",
    "assert_same_tensor",
    "check_op",
    "check_op_in",
    "eager_truth",
    "tolerance",
    "trace_call",
]
