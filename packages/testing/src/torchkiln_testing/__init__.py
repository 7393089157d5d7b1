"""Development kit: the tolerance table and the comparison with eager PyTorch."""

from __future__ import annotations

from torchkiln_testing.compare import assert_same, assert_same_tensor
from torchkiln_testing.tolerance import TOLERANCES, OpClass, Tolerance, tolerance

__all__ = ["TOLERANCES", "OpClass", "Tolerance", "assert_same", "assert_same_tensor", "tolerance"]
