"""Rows of the layers that act on each element, on sizes, or make tensors."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from core_layer_cases import Case, Sizes, T

from torchkiln_core.layers import (
    Activation,
    ActivationKind,
    Cast,
    Elementwise,
    ElementwiseOp,
    Linspace,
    Select,
    Shape,
    Shuffle,
    Unary,
    UnaryOp,
)
from torchkiln_testing import OpClass

F16, BF16, F32, I32, I64, BOOL = torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.int64, torch.bool
POINTWISE = OpClass.POINTWISE

_ACTIVATIONS = {
    Activation(ActivationKind.RELU): lambda x: x.clamp(min=0),
    Activation(ActivationKind.SIGMOID): lambda x: 1 / (1 + torch.exp(-x)),
    Activation(ActivationKind.TANH): torch.tanh,
    Activation(ActivationKind.LEAKY_RELU, 0.1): lambda x: torch.where(x > 0, x, 0.1 * x),
    Activation(ActivationKind.ELU, 1.5): lambda x: torch.where(x > 0, x, 1.5 * torch.expm1(x)),
    Activation(ActivationKind.SELU, 1.6732632423543772, 1.0507009873554805): F.selu,
    Activation(ActivationKind.SOFTSIGN): lambda x: x / (1 + x.abs()),
    Activation(ActivationKind.SOFTPLUS, 0.5, 2.0): lambda x: F.softplus(x, beta=2.0),
    Activation(ActivationKind.CLIP, -0.5, 0.75): lambda x: x.clamp(-0.5, 0.75),
    Activation(ActivationKind.HARD_SIGMOID, 1 / 6, 0.5): F.hardsigmoid,
    Activation(ActivationKind.SCALED_TANH, 2.0, 0.5): lambda x: 2 * torch.tanh(x / 2),
    Activation(ActivationKind.THRESHOLDED_RELU, 0.5): lambda x: F.threshold(x, 0.5, 0.0),
    Activation(ActivationKind.GELU_ERF): lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    Activation(ActivationKind.GELU_TANH): lambda x: x * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}
_UNARY = {
    UnaryOp.EXP: (torch.exp, -2.0, 2.0),
    UnaryOp.LOG: (torch.log, 0.1, 3.0),
    UnaryOp.SQRT: (lambda x: x**0.5, 0.0, 3.0),
    UnaryOp.RECIP: (lambda x: 1 / x, 0.5, 3.0),
    UnaryOp.ABS: (lambda x: torch.where(x < 0, -x, x), -2.0, 2.0),
    UnaryOp.NEG: (lambda x: 0 - x, -2.0, 2.0),
    UnaryOp.SIN: (torch.sin, -2.0, 2.0),
    UnaryOp.COS: (torch.cos, -2.0, 2.0),
    UnaryOp.TAN: (lambda x: torch.sin(x) / torch.cos(x), -1.0, 1.0),
    UnaryOp.SINH: (lambda x: (torch.exp(x) - torch.exp(-x)) / 2, 0.5, 2.0),
    UnaryOp.COSH: (lambda x: (torch.exp(x) + torch.exp(-x)) / 2, -2.0, 2.0),
    UnaryOp.ASIN: (torch.asin, -0.9, 0.9),
    UnaryOp.ACOS: (torch.acos, -0.9, 0.9),
    UnaryOp.ATAN: (torch.atan, -2.0, 2.0),
    UnaryOp.ASINH: (torch.asinh, -2.0, 2.0),
    UnaryOp.ACOSH: (torch.acosh, 1.1, 3.0),
    UnaryOp.ATANH: (torch.atanh, -0.9, 0.9),
    UnaryOp.CEIL: (lambda x: -torch.floor(-x), -3.0, 3.0),
    UnaryOp.FLOOR: (lambda x: x - x.remainder(1), -3.0, 3.0),
    UnaryOp.ERF: (torch.erf, -2.0, 2.0),
    UnaryOp.SIGN: (lambda x: (x > 0).to(x.dtype) - (x < 0).to(x.dtype), -2.0, 2.0),
    UnaryOp.ROUND: (torch.round, -3.0, 3.0),
    UnaryOp.ISINF: (lambda x: x.abs() == math.inf, -2.0, 2.0),
    UnaryOp.ISNAN: (lambda x: x != x, -2.0, 2.0),
}
_ARITHMETIC = {
    ElementwiseOp.SUM: lambda a, b: a + b,
    ElementwiseOp.PROD: lambda a, b: a * b,
    ElementwiseOp.MAX: lambda a, b: torch.where(a > b, a, b),
    ElementwiseOp.MIN: lambda a, b: torch.where(a < b, a, b),
    ElementwiseOp.SUB: lambda a, b: a - b,
    ElementwiseOp.FLOOR_DIV: lambda a, b: torch.div(a, b, rounding_mode="floor"),
    ElementwiseOp.EQUAL: lambda a, b: a == b,
    ElementwiseOp.GREATER: lambda a, b: a > b,
    ElementwiseOp.LESS: lambda a, b: a < b,
}
_LOGICAL = {
    ElementwiseOp.AND: lambda a, b: a & b,
    ElementwiseOp.OR: lambda a, b: a | b,
    ElementwiseOp.XOR: lambda a, b: a ^ b,
    ElementwiseOp.EQUAL: lambda a, b: a == b,
}

ROWS: list[Case] = [
    *(Case(f"activation-{layer.op.value}", layer, (T(("n", 3)),), expected, POINTWISE) for layer, expected in _ACTIVATIONS.items()),
    Case("activation-half", Activation(ActivationKind.RELU), (T(("n",), F16),), F.relu),
    *(
        Case(f"unary-{op.value}", Unary(op), (T(("n", "m"), low=low, high=high),), expected, POINTWISE)
        for op, (expected, low, high) in _UNARY.items()
    ),
    Case("unary-neg-int64", Unary(UnaryOp.NEG), (T(("n",), I64, -9, 9),), torch.neg),
    Case("unary-abs-int32", Unary(UnaryOp.ABS), (T(("n",), I32, -9, 9),), torch.abs),
    Case("unary-not", Unary(UnaryOp.NOT), (T(("n",), BOOL),), lambda x: ~x),
    Case("unary-scalar", Unary(UnaryOp.EXP), (T(()),), torch.exp),
    *(
        Case(f"elementwise-{op.value}", Elementwise(op), (T(("n", "m")), T((1, "m"), low=0.5)), expected, POINTWISE)
        for op, expected in _ARITHMETIC.items()
    ),
    *(
        Case(f"elementwise-{op.value}-int64", Elementwise(op), (T(("n", 1), I64, -9, 9), T(("n", "m"), I64, 1, 5)), expected)
        for op, expected in _ARITHMETIC.items()
    ),
    *(
        Case(f"elementwise-{op.value}-bool", Elementwise(op), (T(("n",), BOOL), T((1,), BOOL)), expected)
        for op, expected in _LOGICAL.items()
    ),
    Case("elementwise-DIV", Elementwise(ElementwiseOp.DIV), (T(("n", 2)), T((1, 2), low=0.5)), lambda a, b: a / b, POINTWISE),
    Case(
        "elementwise-DIV-int32",
        Elementwise(ElementwiseOp.DIV),
        (T(("n",), I32, -9, 9), T(("n",), I32, 1, 4)),
        lambda a, b: (a / b).trunc().to(I32),
    ),
    Case("elementwise-POW", Elementwise(ElementwiseOp.POW), (T(("n",), low=0.1), T((1,))), lambda a, b: a**b, POINTWISE),
    Case("elementwise-bfloat16", Elementwise(ElementwiseOp.SUM), (T(("n",), BF16), T(("n",), BF16)), lambda a, b: a + b),
    Case("cast-to-half", Cast(F16), (T(("n",)),), lambda x: x.half()),
    Case("cast-truncates", Cast(I64), (T(("n",), low=-9, high=9),), lambda x: torch.where(x < 0, x.ceil(), x.floor()).long()),
    Case("cast-to-bool", Cast(BOOL), (T(("n",), I32, -1, 2),), lambda x: x != 0),
    Case("cast-from-bool", Cast(F32), (T(("n",), BOOL),), lambda x: x.float()),
    Case("select", Select(), (T(("n", 1), BOOL), T(("n", "m")), T((1, 1))), torch.where),
    Case("select-int", Select(), (T((1,), BOOL), T(("n",), I64, 0, 9), T(("n",), I64, 0, 9)), torch.where),
    Case("shape", Shape(), (T(("n", 3, "2*m")),), lambda x: torch.tensor(list(x.shape))),
    Case("shape-of-scalar", Shape(), (T(()),), lambda x: torch.tensor([], dtype=I64)),
    Case("shuffle-transpose", Shuffle(first=(2, 0, 1)), (T(("n", 3, "m")),), lambda x: x.movedim(2, 0)),
    Case("shuffle-dims", Shuffle(dims=(-1, 6)), (T(("n", 2, 3)),), lambda x: x.flatten(1)),
    Case("shuffle-to-scalar", Shuffle(dims=()), (T((1, 1)),), lambda x: x[0, 0]),
    Case("shuffle-zero", Shuffle(dims=(0, 4)), (T((2, 0)),), lambda x: x.new_zeros(0, 4)),
    Case("shuffle-sizes", Shuffle(), (T(("n", "m", 2)), Sizes(("n*m", 2))), lambda x: x.flatten(0, 1)),
    Case(
        "shuffle-all",
        Shuffle(first=(1, 0, 2), second=(1, 0)),
        (T(("n", "m", 2)), Sizes(("m", "2*n"))),
        lambda x: x.transpose(0, 1).flatten(1).t(),
    ),
    Case(
        "shuffle-heads",
        Shuffle(second=(0, 2, 1, 3)),
        (T(("n", "m", 6)), Sizes(("n", "m", 2, 3))),
        lambda x: x.unflatten(2, (2, 3)).transpose(1, 2),
    ),
    Case("shuffle-merge", Shuffle(first=(0, 2, 1, 3)), (T(("n", 2, "m", 3)), Sizes(("n", "m", 6))), lambda x: x.transpose(1, 2).flatten(2)),
    Case("linspace-int", Linspace(3, 2, I64), (Sizes(("n",)),), lambda n: torch.arange(n) * 2 + 3, sizes=("n",)),
    Case("linspace-float", Linspace(0.5, 0.25, F32), (Sizes((4,)),), lambda: torch.tensor([0.5, 0.75, 1.0, 1.25])),
    Case("linspace-down", Linspace(0, -1, I32), (Sizes((3,)),), lambda: torch.tensor([0, -1, -2], dtype=I32)),
]
