"""Rows of arithmetic, comparisons, logic and activations."""

from __future__ import annotations

import dataclasses
import math

import torch

from torchkiln_testing import OpCase, OpClass

aten = torch.ops.aten
SPECIAL = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 0.0, 1.5, -2.5, 0.5, -0.5, 7.0])
X = torch.linspace(-3, 3, 12).reshape(3, 4)
Y = torch.linspace(0.3, 2.7, 4)
POSITIVE = torch.linspace(0.1, 4, 12).reshape(3, 4)
UNIT = torch.linspace(-0.9, 0.9, 12).reshape(3, 4)
SCALAR = torch.tensor(1.25)
I32 = torch.tensor([[-7, 3, 5], [8, -2, 1]], dtype=torch.int32)
I64 = torch.tensor([[-7, 3, 5], [8, -2, 1]])
BIG = torch.tensor([2**31 + 5, -(2**40), 3])
DIVISORS = torch.tensor([2, -3, 4])
FLAGS = torch.tensor([[True, False, True], [False, False, True]])
EMPTY = torch.empty(0, 4)
RANK8 = torch.linspace(-1, 1, 6).reshape(1, 1, 2, 1, 1, 3, 1, 1)
PAIR = ((0, 0), (1, 0))
GATED = (aten.gelu.default,)


def _floats(op, domain=X):
    """A function of floats: its domain, 0-d, rank 8, a dynamic dimension, edge values, integers and a strided view."""
    # On some CPUs torch's gelu of an infinity is NaN in float32 and infinity in float16.
    edges = SPECIAL[SPECIAL != math.inf] if op in GATED else SPECIAL
    return [
        OpCase(op, (domain,)),
        OpCase(op, (domain[0, 3],)),
        OpCase(op, (domain,), dynamic=((0, 0),)),
        OpCase(op, (domain.t(),)),
        OpCase(op, (edges,)),
    ]


UNARY = [
    row
    for op, domain in (
        (aten.exp.default, X),
        (aten.log.default, POSITIVE),
        (aten.log2.default, POSITIVE),
        (aten.log1p.default, UNIT),
        (aten.expm1.default, X),
        (aten.log10.default, POSITIVE),
        (aten.sqrt.default, POSITIVE),
        (aten.rsqrt.default, POSITIVE),
        (aten.reciprocal.default, POSITIVE),
        (aten.sin.default, X),
        (aten.cos.default, X),
        (aten.tan.default, UNIT),
        (aten.sinh.default, X),
        (aten.cosh.default, X),
        (aten.asin.default, UNIT),
        (aten.acos.default, UNIT),
        (aten.atan.default, X),
        (aten.asinh.default, X),
        (aten.acosh.default, POSITIVE + 1),
        (aten.atanh.default, UNIT),
        (aten.erf.default, X),
        (aten.floor.default, X),
        (aten.ceil.default, X),
        (aten.round.default, X),
        (aten.trunc.default, X),
        (aten.abs.default, X),
        (aten.neg.default, X),
        (aten.sign.default, X),
        (aten.relu.default, X),
        (aten.sigmoid.default, X),
        (aten.tanh.default, X),
        (aten.gelu.default, X),
        (aten.silu.default, X),
        (aten.relu6.default, X * 3),
        (aten.hardtanh.default, X),
        (aten.hardsigmoid.default, X * 2),
        (aten.hardswish.default, X * 2),
        (aten.leaky_relu.default, X),
        (aten.elu.default, X),
        (aten.softplus.default, X * 10),
        (aten.mish.default, X),
        (aten.isnan.default, X),
        (aten.isinf.default, X),
        (aten.logical_not.default, X),
    )
    for row in _floats(op, domain)
]

INTEGERS = [
    OpCase(op, (values,))
    for op in (aten.floor.default, aten.ceil.default, aten.round.default, aten.trunc.default, aten.abs.default, aten.neg.default)
    for values in (I32, I64)
] + [OpCase(op, (values,)) for op in (aten.sign.default, aten.relu.default, aten.bitwise_not.default) for values in (I32, I64, BIG)]

PROMOTED = [OpCase(op, (values,)) for op in (aten.exp.default, aten.sin.default, aten.rsqrt.default) for values in (I64.abs(), FLAGS)]

BINARY = [
    row
    for op in (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.rsub.Tensor)
    for row in (
        OpCase(op, (X, Y)),
        OpCase(op, (X, SCALAR)),
        OpCase(op, (SPECIAL, SPECIAL.flip(0))),
        OpCase(op, (X, Y[:1].expand(4))),
        OpCase(op, (EMPTY, Y)),
        OpCase(op, (RANK8, RANK8)),
        OpCase(op, (X, X + 4), dynamic=PAIR),
        OpCase(op, (X, Y), dynamic=((0, 0),)),
        OpCase(op, (I64, DIVISORS)),
        OpCase(op, (I32, DIVISORS)),
        OpCase(op, (I64, Y[:3])),
    )
] + [
    OpCase(aten.add.Tensor, (BIG, BIG)),
    OpCase(aten.add.Tensor, (X, 0.1)),
    OpCase(aten.add.Tensor, (POSITIVE, Y), {"alpha": 0.3}),
    OpCase(aten.sub.Tensor, (X, Y), {"alpha": 2}),
    OpCase(aten.rsub.Scalar, (X, 1)),
    OpCase(aten.rsub.Scalar, (I64, 3, 2)),
    OpCase(aten.add.Scalar, (X, 2)),
    OpCase(aten.sub.Scalar, (X, 0.5)),
    OpCase(aten.mul.Scalar, (X, 1 / 3)),
    OpCase(aten.mul.Tensor, (I64, 2.5)),
    OpCase(aten.mul.Tensor, (FLAGS, FLAGS.flip(0))),
    OpCase(aten.mul.Tensor, (FLAGS, 3)),
    OpCase(aten.div.Scalar, (X, 3)),
    OpCase(aten.div.Tensor, (FLAGS, I64)),
    OpCase(aten.div.Tensor_mode, (X, Y), {"rounding_mode": "trunc"}),
    OpCase(aten.div.Tensor_mode, (X, Y), {"rounding_mode": None}),
    OpCase(aten.div.Tensor_mode, (I64, DIVISORS), {"rounding_mode": "floor"}),
    OpCase(aten.div.Tensor_mode, (I32, DIVISORS), {"rounding_mode": "trunc"}),
    OpCase(aten.div.Scalar_mode, (I64, 3), {"rounding_mode": "floor"}),
    OpCase(aten.floor_divide.default, (I64, DIVISORS)),
    OpCase(aten.floor_divide.default, (BIG, DIVISORS)),
    OpCase(aten.floor_divide.Scalar, (I32, -3)),
    OpCase(aten.remainder.Tensor, (I64, DIVISORS)),
    OpCase(aten.remainder.Scalar, (I32, -3)),
    OpCase(aten.fmod.Tensor, (I64, DIVISORS)),
    OpCase(aten.fmod.Scalar, (I32, -3)),
    OpCase(aten.add.Tensor, (FLAGS, FLAGS.flip(0))),
    OpCase(aten.add.Tensor, (FLAGS, FLAGS[:1]), dynamic=((0, 0),)),
    OpCase(aten.add.Scalar, (FLAGS, True)),
    OpCase(aten.add.Tensor, (FLAGS, torch.ones(3, dtype=torch.bool)), weights=(1,)),
    OpCase(aten.mul.Scalar, (FLAGS, False)),
    OpCase(aten.atan2.default, (SPECIAL, SPECIAL[:, None])),
    OpCase(aten.atan2.default, (X, X.flip(1)), dynamic=PAIR),
    OpCase(aten.atan2.default, (X[0, 3], Y)),
    OpCase(aten.atan2.default, (I64, DIVISORS)),
    OpCase(aten.addcmul.default, (X, Y, Y), {"value": 0.1}),
    OpCase(aten.addcmul.default, (I64, DIVISORS, DIVISORS)),
    OpCase(aten.addcdiv.default, (X, Y, Y), {"value": 2}),
    OpCase(aten.lerp.Scalar, (X, Y, 0.2)),
    OpCase(aten.lerp.Scalar, (X, Y, 0.7)),
    OpCase(aten._prelu_kernel.default, (X, Y)),
]

FRACTIONS = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 0.0, 0.3, -0.3, 2.0, -2.0, 7.5, -7.5, 65504.0, -65504.0, 1e-7, -1e-7])
DIVISIONS = [
    OpCase(op, (values, divisor), kwargs, dynamic=dynamic, op_class=OpClass.POINTWISE)
    for op, kwargs in (
        (aten.floor_divide.Scalar, {}),
        (aten.div.Scalar_mode, {"rounding_mode": "floor"}),
        (aten.remainder.Scalar, {}),
        (aten.fmod.Scalar, {}),
    )
    for values, divisor, dynamic in (
        (FRACTIONS, 1, ()),
        (FRACTIONS, 4.0, ()),
        (FRACTIONS, -2, ()),
        (FRACTIONS * 1e30, 32768, ()),
        (FRACTIONS * 1e-38, -16, ()),
        (X, 1.0, ((0, 0),)),
    )
] + [
    OpCase(aten.floor_divide.default, (I64, 2.0)),
    OpCase(aten.div.Tensor_mode, (X, 2), {"rounding_mode": "floor"}),
]

EXTREMES = [
    row
    for op in (aten.maximum.default, aten.minimum.default, aten.fmax.default, aten.fmin.default)
    for row in (
        OpCase(op, (X, Y)),
        OpCase(op, (X, SCALAR), dynamic=((0, 0),)),
        OpCase(op, (SPECIAL, SPECIAL[:, None])),
        OpCase(op, (SPECIAL, I64[0, 1])),
        OpCase(op, (FLAGS, FLAGS.flip(0))),
        OpCase(op, (I64, DIVISORS)),
        OpCase(op, (I32, Y[:3])),
    )
]

POWERS = [OpCase(aten.pow.Tensor_Scalar, (POSITIVE, exponent)) for exponent in (0.5, -0.5, 1, 2, 3, -1, -2, 2.2)] + [
    OpCase(aten.pow.Tensor_Scalar, (X, 2), dynamic=((0, 0),)),
    OpCase(aten.pow.Tensor_Scalar, (I64, 2)),
    *(OpCase(aten.pow.Tensor_Scalar, (values, exponent)) for values in (I64, I32) for exponent in (1, 3, 5, 12, 40)),
    OpCase(aten.pow.Tensor_Scalar, (I64, 0.5)),
    OpCase(aten.pow.Tensor_Tensor, (POSITIVE, Y)),
    OpCase(aten.pow.Scalar, (2.0, X)),
]

COMPARISONS = [
    row
    for name in ("eq", "ne", "lt", "gt", "ge", "le")
    for row in (
        OpCase(getattr(aten, name).Tensor, (X, X.flip(1))),
        OpCase(getattr(aten, name).Tensor, (X, X.flip(1)), dynamic=PAIR),
        OpCase(getattr(aten, name).Tensor, (SPECIAL, SPECIAL.flip(0))),
        OpCase(getattr(aten, name).Tensor, (SPECIAL, SPECIAL)),
        OpCase(getattr(aten, name).Tensor, (I64, DIVISORS)),
        OpCase(getattr(aten, name).Scalar, (I32, 2.5)),
        OpCase(getattr(aten, name).Tensor, (FLAGS, FLAGS.flip(0))),
        OpCase(getattr(aten, name).Scalar, (X, 0)),
        OpCase(getattr(aten, name).Scalar, (BIG, 2**31)),
    )
]

LOGIC = [
    row
    for name in ("and", "or", "xor")
    for row in (
        OpCase(getattr(aten, f"logical_{name}").default, (FLAGS, FLAGS.flip(0))),
        OpCase(getattr(aten, f"logical_{name}").default, (X, X.flip(0).round())),
        OpCase(getattr(aten, f"bitwise_{name}").Tensor, (FLAGS, FLAGS.flip(0))),
        OpCase(getattr(aten, f"bitwise_{name}").Scalar, (FLAGS, True)),
        OpCase(getattr(aten, f"bitwise_{name}").Scalar, (FLAGS, False)),
        OpCase(getattr(aten, f"bitwise_{name}").Tensor, (FLAGS, torch.ones(2, 1, 3, dtype=torch.bool)), weights=(1,)),
        OpCase(getattr(aten, f"logical_{name}").default, (FLAGS, torch.tensor(True)), weights=(1,)),
        OpCase(getattr(aten, f"logical_{name}").default, (FLAGS, torch.tensor(False)), dynamic=((0, 0),), weights=(1,)),
    )
] + [
    OpCase(aten.logical_not.default, (FLAGS,)),
    OpCase(aten.logical_not.default, (I64,)),
    OpCase(aten.bitwise_not.default, (FLAGS,)),
    OpCase(aten.isnan.default, (I64,)),
    OpCase(aten.isnan.default, (FLAGS,)),
]

SELECTION = [
    OpCase(aten.where.self, (X > 0, X, Y), op_class=OpClass.EXACT),
    OpCase(aten.where.self, (X > 0, X, SCALAR), dynamic=((0, 0), (1, 0)), op_class=OpClass.EXACT),
    OpCase(aten.where.self, (FLAGS, I64, Y[:3]), op_class=OpClass.EXACT),
    OpCase(aten.where.self, (FLAGS, FLAGS, FLAGS.flip(0))),
    OpCase(aten.masked_fill.Scalar, (X, X > 1, -math.inf), op_class=OpClass.EXACT),
    OpCase(aten.masked_fill.Tensor, (X, X > 1, SCALAR), op_class=OpClass.EXACT),
    OpCase(aten.clamp.default, (X, -1, 1)),
    OpCase(aten.clamp.default, (SPECIAL, -1, 1)),
    OpCase(aten.clamp.default, (SPECIAL, -math.inf, 2)),
    OpCase(aten.clamp.default, (SPECIAL, math.nan, 2)),
    # Older releases of torch take NaN for no bound where it is the only one.
    *([OpCase(aten.clamp.default, (SPECIAL, None, math.nan))] if aten.clamp.default(X, None, math.nan).isnan().all() else []),
    OpCase(aten.clamp.Tensor, (SPECIAL[:, None, None], SPECIAL[:, None], SPECIAL)),
    OpCase(aten.clamp_min.default, (SPECIAL, 0)),
    OpCase(aten.clamp_min.Tensor, (SPECIAL[:, None], SPECIAL)),
    OpCase(aten.clamp_max.default, (SPECIAL, 0)),
    OpCase(aten.clamp_max.Tensor, (SPECIAL[:, None], SPECIAL)),
    OpCase(aten.clamp_min.default, (I64, 2)),
    OpCase(aten.clamp.default, (X, 0.1)),
    OpCase(aten.clamp.default, (X, None, 0.1), dynamic=((0, 0),)),
    OpCase(aten.clamp.default, (X, 2, 1)),
    OpCase(aten.clamp.default, (I64, 0, 4)),
    OpCase(aten.clamp.Tensor, (X, Y - 2, Y)),
    OpCase(aten.clamp_min.default, (X, 0)),
    OpCase(aten.clamp_min.Tensor, (X, Y)),
    OpCase(aten.clamp_max.default, (X, 0.5)),
    OpCase(aten.clamp_max.Tensor, (X, Y)),
    OpCase(aten.threshold.default, (SPECIAL, 0.1, 20)),
    OpCase(aten.gelu.default, (X,), {"approximate": "tanh"}),
    OpCase(aten.leaky_relu.default, (X, 0.2)),
    OpCase(aten.elu.default, (X, 1.67, 1.05)),
    OpCase(aten.hardtanh.default, (X, -0.5, 2)),
    OpCase(aten.softplus.default, (X, 2, 3)),
]

CASES = [
    dataclasses.replace(case, op_class=OpClass.GATE) if case.op in GATED else case
    for case in UNARY + INTEGERS + PROMOTED + BINARY + DIVISIONS + EXTREMES + POWERS + COMPARISONS + LOGIC + SELECTION
]
