"""Layers that act on each element."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torchkiln_core.errors import InternalError
from torchkiln_core.layers.checks import floating, is_real, same_dtype, same_rank
from torchkiln_core.network import Layer


@dataclass(frozen=True, slots=True)
class Cast(Layer):
    """Converts to ``dtype``. Source: TensorRT operator page "Cast".

    Floats to integers truncate towards zero; numbers to bool test for non-zero.
    """

    dtype: torch.dtype

    def run(self, input: torch.Tensor) -> torch.Tensor:
        """``[*] -> [*]``."""
        return input.to(self.dtype)


class ActivationKind(enum.Enum):
    """``trt.ActivationType``."""

    RELU = "RELU"
    SIGMOID = "SIGMOID"
    TANH = "TANH"
    LEAKY_RELU = "LEAKY_RELU"
    ELU = "ELU"
    SELU = "SELU"
    SOFTSIGN = "SOFTSIGN"
    SOFTPLUS = "SOFTPLUS"
    CLIP = "CLIP"
    HARD_SIGMOID = "HARD_SIGMOID"
    SCALED_TANH = "SCALED_TANH"
    THRESHOLDED_RELU = "THRESHOLDED_RELU"
    GELU_ERF = "GELU_ERF"
    GELU_TANH = "GELU_TANH"


_ACTIVATIONS: dict[ActivationKind, Callable[[torch.Tensor, float, float], torch.Tensor]] = {
    ActivationKind.RELU: lambda x, a, b: torch.relu(x),
    ActivationKind.SIGMOID: lambda x, a, b: torch.sigmoid(x),
    ActivationKind.TANH: lambda x, a, b: torch.tanh(x),
    ActivationKind.LEAKY_RELU: lambda x, a, b: F.leaky_relu(x, a),
    ActivationKind.ELU: lambda x, a, b: F.elu(x, a),
    ActivationKind.SELU: lambda x, a, b: torch.where(x > 0, b * x, b * (a * torch.exp(x) - a)),
    ActivationKind.SOFTSIGN: lambda x, a, b: F.softsign(x),
    ActivationKind.SOFTPLUS: lambda x, a, b: a * F.softplus(b * x),
    ActivationKind.CLIP: lambda x, a, b: torch.clamp(torch.where(x.isnan(), torch.full_like(x, a), x), a, b),
    ActivationKind.HARD_SIGMOID: lambda x, a, b: torch.clamp(a * x + b, 0.0, 1.0),
    ActivationKind.SCALED_TANH: lambda x, a, b: a * torch.tanh(b * x),
    ActivationKind.THRESHOLDED_RELU: lambda x, a, b: torch.where(x > a, x, torch.zeros_like(x)),
    ActivationKind.GELU_ERF: lambda x, a, b: F.gelu(x),
    ActivationKind.GELU_TANH: lambda x, a, b: F.gelu(x, approximate="tanh"),
}


_IN_FLOAT32 = (ActivationKind.SELU, ActivationKind.SOFTPLUS, ActivationKind.HARD_SIGMOID, ActivationKind.SCALED_TANH)
"""Several operations, so half precisions are rounded once, at the end; torch's own functions do so themselves."""


@dataclass(frozen=True, slots=True)
class Activation(Layer):
    """An activation function with parameters ``alpha`` and ``beta``. Source: TensorRT operator page "Activation".

    ``CLIP`` of NaN is ``alpha``. TensorRT keeps the NaN in half precisions, and makes 1 of it in ``HARD_SIGMOID`` there.
    TensorRT's ``RELU`` of -0.0 is -0.0, and its ``GELU_ERF`` and ``GELU_TANH`` of the largest finite numbers are infinite.
    TensorRT rounds in between in ``ELU``, ``SELU``, ``SOFTPLUS``, ``HARD_SIGMOID``, ``SCALED_TANH``, ``GELU_ERF`` and ``GELU_TANH``:
    results near 0 may be off by the dtype's epsilon.
    """

    op: ActivationKind
    alpha: float = 0.0
    beta: float = 0.0

    def run(self, input: torch.Tensor) -> torch.Tensor:
        """``[*] -> [*]``, floating."""
        floating("Activation", input)
        function = _ACTIVATIONS[self.op]
        if self.op in _IN_FLOAT32:
            return function(input.to(torch.float32), self.alpha, self.beta).to(input.dtype)
        return function(input, self.alpha, self.beta)


class UnaryOp(enum.Enum):
    """``trt.UnaryOperation``."""

    EXP = "EXP"
    LOG = "LOG"
    SQRT = "SQRT"
    RECIP = "RECIP"
    ABS = "ABS"
    NEG = "NEG"
    SIN = "SIN"
    COS = "COS"
    TAN = "TAN"
    SINH = "SINH"
    COSH = "COSH"
    ASIN = "ASIN"
    ACOS = "ACOS"
    ATAN = "ATAN"
    ASINH = "ASINH"
    ACOSH = "ACOSH"
    ATANH = "ATANH"
    CEIL = "CEIL"
    FLOOR = "FLOOR"
    ERF = "ERF"
    NOT = "NOT"
    SIGN = "SIGN"
    ROUND = "ROUND"
    ISINF = "ISINF"
    ISNAN = "ISNAN"


_UNARY: dict[UnaryOp, Callable[[torch.Tensor], torch.Tensor]] = {
    UnaryOp.EXP: torch.exp,
    UnaryOp.LOG: torch.log,
    UnaryOp.SQRT: torch.sqrt,
    UnaryOp.RECIP: torch.reciprocal,
    UnaryOp.ABS: torch.abs,
    UnaryOp.NEG: torch.neg,
    UnaryOp.SIN: torch.sin,
    UnaryOp.COS: torch.cos,
    UnaryOp.TAN: torch.tan,
    UnaryOp.SINH: torch.sinh,
    UnaryOp.COSH: torch.cosh,
    UnaryOp.ASIN: torch.asin,
    UnaryOp.ACOS: torch.acos,
    UnaryOp.ATAN: torch.atan,
    UnaryOp.ASINH: torch.asinh,
    UnaryOp.ACOSH: torch.acosh,
    UnaryOp.ATANH: torch.atanh,
    UnaryOp.CEIL: torch.ceil,
    UnaryOp.FLOOR: torch.floor,
    UnaryOp.ERF: torch.erf,
    UnaryOp.NOT: torch.logical_not,
    UnaryOp.SIGN: lambda x: torch.where(x.isnan(), x, torch.sign(x)),
    UnaryOp.ROUND: torch.round,
    UnaryOp.ISINF: torch.isinf,
    UnaryOp.ISNAN: torch.isnan,
}
_SIGNED = (UnaryOp.ABS, UnaryOp.NEG, UnaryOp.SIGN)


@dataclass(frozen=True, slots=True)
class Unary(Layer):
    """A function of one operand; ``ROUND`` rounds halves to even. Source: TensorRT operator page "Unary".

    Integers are taken by ``ABS``, ``NEG`` and ``SIGN`` only, bool by ``NOT`` only. ``SIGN`` of NaN is NaN.
    """

    op: UnaryOp

    def run(self, input: torch.Tensor) -> torch.Tensor:
        """``[*] -> [*]``."""
        if self.op is UnaryOp.NOT:
            if input.dtype is not torch.bool:
                raise InternalError(f"Unary NOT: expected bool, got {input.dtype}")
        elif not (self.op in _SIGNED and input.dtype in (torch.int32, torch.int64)):
            floating(f"Unary {self.op.value}", input)
        return _UNARY[self.op](input)


class ElementwiseOp(enum.Enum):
    """``trt.ElementWiseOperation``."""

    SUM = "SUM"
    PROD = "PROD"
    MAX = "MAX"
    MIN = "MIN"
    SUB = "SUB"
    DIV = "DIV"
    POW = "POW"
    FLOOR_DIV = "FLOOR_DIV"
    AND = "AND"
    OR = "OR"
    XOR = "XOR"
    EQUAL = "EQUAL"
    GREATER = "GREATER"
    LESS = "LESS"


def _divide(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return torch.div(left, right) if left.dtype.is_floating_point else torch.div(left, right, rounding_mode="trunc")


_ELEMENTWISE: dict[ElementwiseOp, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    ElementwiseOp.SUM: torch.add,
    ElementwiseOp.PROD: torch.mul,
    ElementwiseOp.MAX: torch.fmax,
    ElementwiseOp.MIN: torch.fmin,
    ElementwiseOp.SUB: torch.sub,
    ElementwiseOp.DIV: _divide,
    ElementwiseOp.POW: torch.pow,
    ElementwiseOp.FLOOR_DIV: torch.floor_divide,
    ElementwiseOp.AND: torch.logical_and,
    ElementwiseOp.OR: torch.logical_or,
    ElementwiseOp.XOR: torch.logical_xor,
    ElementwiseOp.EQUAL: torch.eq,
    ElementwiseOp.GREATER: torch.gt,
    ElementwiseOp.LESS: torch.lt,
}
_LOGICAL = (ElementwiseOp.AND, ElementwiseOp.OR, ElementwiseOp.XOR)


@dataclass(frozen=True, slots=True)
class Elementwise(Layer):
    """A function of two operands of one rank and dtype, broadcast over dimensions of size 1. Source: TensorRT operator page "ElementWise".

    ``DIV`` of integers truncates, ``FLOOR_DIV`` rounds down. Comparisons give bool.

    ``MAX`` and ``MIN`` of a number and NaN are the number. TensorRT gives the one or the other, depending on the dtype and on which
    operand is NaN, and either zero for zeros of two signs. Its floating ``FLOOR_DIV`` of an infinity is infinite; here it is NaN, as
    in torch. It computes ``POW`` of integers in float32.
    """

    op: ElementwiseOp

    def run(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """``[*], [*] -> [*]``."""
        kind = f"Elementwise {self.op.value}"
        same_dtype(kind, left, right)
        same_rank(kind, left, right)
        is_bool = left.dtype is torch.bool
        if (self.op in _LOGICAL) != is_bool and not (is_bool and self.op is ElementwiseOp.EQUAL):
            raise InternalError(f"{kind}: does not take {left.dtype}")
        return _ELEMENTWISE[self.op](left, right)


@dataclass(frozen=True, slots=True)
class Select(Layer):
    """``then`` where ``condition``, else ``otherwise``. Source: TensorRT operator page "Select".

    Operands have one rank and broadcast over dimensions of size 1.
    """

    def run(self, condition: torch.Tensor, then: torch.Tensor, otherwise: torch.Tensor) -> torch.Tensor:
        """``bool [*], [*], [*] -> [*]``."""
        same_dtype("Select", then, otherwise)
        same_rank("Select", condition, then, otherwise)
        if condition.dtype is not torch.bool:
            raise InternalError(f"Select: expected a bool condition, got {condition.dtype}")
        return torch.where(condition, then, otherwise)


@dataclass(frozen=True, slots=True)
class ParametricRelu(Layer):
    """``x`` where it is not negative, else ``slope * x``. Source: TensorRT operator page "ParametricReLU"."""

    def run(self, input: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
        """``[*], [*] -> [*]``, floating, of one dtype and rank; the slopes broadcast to the input."""
        floating("ParametricRelu", input)
        same_dtype("ParametricRelu", input, slope)
        same_rank("ParametricRelu", input, slope)
        for dim, (size, slopes) in enumerate(zip(input.shape, slope.shape, strict=True)):
            if statically_known_true(slopes != 1) and statically_known_true(slopes != size):
                raise InternalError(f"ParametricRelu: expected 1 or {size} slopes in dimension {dim}, got {slopes}")
        return torch.where(input < 0, slope * input, input) if is_real(input) else input.new_empty(input.shape)
