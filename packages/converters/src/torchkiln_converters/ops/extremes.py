"""The larger or smaller of two, and bounds. NaN wins, as in PyTorch, except in ``fmax`` and ``fmin``."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from torchkiln_converters.arrival import Operand, Result
from torchkiln_converters.converter import Converter, converter
from torchkiln_converters.support import NUMBERS, Support
from torchkiln_converters.writing.extremes import extreme, extreme_number
from torchkiln_converters.writing.values import cast, elementwise
from torchkiln_core import Network, Value
from torchkiln_core.layers import ElementwiseOp

aten = torch.ops.aten
_OF_BOOLS = {ElementwiseOp.MAX: ElementwiseOp.OR, ElementwiseOp.MIN: ElementwiseOp.AND}


def _either(target: OpOverload[..., Any], op: ElementwiseOp) -> Converter[...]:
    def function(net: Network, self: Value, other: Value, result: Result) -> Value:
        left, right = cast(net, self, result.dtype), cast(net, other, result.dtype)
        return elementwise(net, _OF_BOOLS[op], left, right) if result.dtype is torch.bool else extreme(net, op, left, right)

    function.__name__ = "maximum" if op is ElementwiseOp.MAX else "minimum"
    return converter(target)(function)


def _ignoring_nan(target: OpOverload[..., Any], op: ElementwiseOp) -> Converter[...]:
    def function(net: Network, self: Value, other: Value, result: Result) -> Value:
        left, right = cast(net, self, result.dtype), cast(net, other, result.dtype)
        return elementwise(net, _OF_BOOLS[op], left, right) if result.dtype is torch.bool else extreme_number(net, op, left, right)

    function.__name__ = "fmax" if op is ElementwiseOp.MAX else "fmin"
    return converter(target)(function)


EITHER = (
    _either(aten.maximum.default, ElementwiseOp.MAX),
    _either(aten.minimum.default, ElementwiseOp.MIN),
    _ignoring_nan(aten.fmax.default, ElementwiseOp.MAX),
    _ignoring_nan(aten.fmin.default, ElementwiseOp.MIN),
)
"""The larger or smaller of two."""


@converter((aten.clamp.default, aten.clamp.Tensor), Support(dtypes=NUMBERS))
def clamp(net: Network, self: Value, min: Operand | None, max: Operand | None, result: Result) -> Value:
    """``clamp(Tensor self, Scalar? min=None, Scalar? max=None)``; ``max`` where ``min > max``."""
    value = cast(net, self, result.dtype)
    if min is not None:
        value = extreme(net, ElementwiseOp.MAX, value, min)
    return value if max is None else extreme(net, ElementwiseOp.MIN, value, max)


@converter((aten.clamp_min.default, aten.clamp_min.Tensor), Support(dtypes=NUMBERS))
def clamp_min(net: Network, self: Value, min: Operand, result: Result) -> Value:
    """``clamp_min(Tensor self, Scalar min)``."""
    return extreme(net, ElementwiseOp.MAX, cast(net, self, result.dtype), min)


@converter((aten.clamp_max.default, aten.clamp_max.Tensor), Support(dtypes=NUMBERS))
def clamp_max(net: Network, self: Value, max: Operand, result: Result) -> Value:
    """``clamp_max(Tensor self, Scalar max)``."""
    return extreme(net, ElementwiseOp.MIN, cast(net, self, result.dtype), max)
