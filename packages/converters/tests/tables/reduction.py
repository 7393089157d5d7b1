"""Rows of reductions and order."""

from __future__ import annotations

import math

import torch

from torchkiln_testing import OpCase, OpClass

aten = torch.ops.aten
X = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1))
SPECIAL = torch.tensor([[math.inf, 1.0, 2.0], [-math.inf, 3.0, 0.0], [math.nan, 1.0, 1.0]])
I64 = torch.tensor([[5, -2, 7], [2**33, 1, 1]])
I32 = torch.tensor([[5, -2, 7], [3, 1, 1]], dtype=torch.int32)
FLAGS = torch.tensor([[True, False, True], [False, False, False]])
NO_TIES = torch.randperm(60, generator=torch.Generator().manual_seed(1)).view(3, 5, 4) / 8 - 3
"""No two are equal in any dtype, for the order of equal elements is open."""
TIES = torch.tensor([[1.0, 3.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0]])
DYNAMIC = ((0, 0), (0, 1))


def reduced(op, *args, dynamic=(), results=None, **kwargs):
    return OpCase(op, args, kwargs, dynamic, (), OpClass.REDUCTION, results)


def exact(op, *args, dynamic=(), results=None, **kwargs):
    return OpCase(op, args, kwargs, dynamic, (), OpClass.EXACT, results)


SUMS = [
    reduced(aten.sum.dim_IntList, X, [1]),
    reduced(aten.sum.dim_IntList, X, [-1, 0], True, dynamic=DYNAMIC),
    reduced(aten.sum.dim_IntList, X, []),
    reduced(aten.sum.dim_IntList, X, None),
    reduced(aten.sum.dim_IntList, I64, [1]),
    reduced(aten.sum.dim_IntList, I32, [1]),
    reduced(aten.sum.dim_IntList, FLAGS, [1]),
    reduced(aten.sum.dim_IntList, X, [1], dtype=torch.float32),
    reduced(aten.sum.dim_IntList, torch.tensor(2.0), [0]),
    reduced(aten.sum.dim_IntList, torch.full((4, 3), 60000.0), [0]),
    reduced(aten.sum.default, X),
    reduced(aten.sum.default, FLAGS),
    reduced(aten.mean.dim, X, [1, 2], dynamic=DYNAMIC),
    reduced(aten.mean.dim, X, [-1], True),
    reduced(aten.mean.dim, torch.full((4, 3), 60000.0), [0]),
    reduced(aten.mean.default, X),
    reduced(aten.prod.dim_int, X, 1),
    reduced(aten.prod.dim_int, I64, -1, True),
    reduced(aten.prod.default, X[0]),
    OpCase(aten.cumsum.default, (X, 1), dynamic=DYNAMIC, op_class=OpClass.PARTIAL),
    reduced(aten.cumsum.default, I32, -1),
    reduced(aten.cumsum.default, FLAGS, 1),
    reduced(aten.cumsum.default, torch.tensor(2.0), 0),
    reduced(aten.var.correction, X, [1], correction=1),
    reduced(aten.var.correction, X, None),
    reduced(aten.var.correction, X, [0, 1], correction=0, keepdim=True, dynamic=DYNAMIC),
    reduced(aten.var.correction, X, [0, 1], correction=1, dynamic=DYNAMIC),
    reduced(aten.var.correction, X[:1], [0], correction=1),
    reduced(aten.std.correction, X, [-1], correction=1),
    reduced(aten.var_mean.correction, X, [1], correction=0, keepdim=True),
    reduced(aten.linalg_vector_norm.default, X, 2, [1], True, dynamic=DYNAMIC),
    reduced(aten.linalg_vector_norm.default, X, 1, [0, 2]),
    reduced(aten.linalg_vector_norm.default, X, math.inf),
    reduced(aten.linalg_vector_norm.default, X, -math.inf, [1]),
]

NAN_LAST = torch.tensor([[math.inf, math.nan, -math.inf, math.inf, math.nan, 3e38, -3e38, 1.0]])
HARD = torch.cat(
    [
        NAN_LAST,
        NAN_LAST.flip(1),
        torch.full((1, 8), math.nan),
        torch.full((1, 8), math.inf),
        torch.full((1, 8), -math.inf),
        torch.tensor([[math.nan, -math.inf, -math.inf, math.nan, -math.inf, -math.inf, math.nan, -math.inf]]),
        torch.tensor([[math.inf, math.nan, math.inf, math.nan, math.inf, math.inf, math.nan, math.inf]]),
        torch.tensor([[math.nan, 2.0, 2.0, -1.0, 0.5, math.nan, -math.inf, 2.0]]),
        torch.tensor([[0.25, 2.0, 4.0, -1.0, 0.5, 8.0, -2.0, 3.0]]),
    ]
)
"""Rows where NaN, infinities and ties meet."""

EXTREMES = [
    *(exact(getattr(aten, name).default, HARD, [1], dynamic=((0, 0),)) for name in ("amax", "amin")),
    *(exact(getattr(aten, name).default, HARD, [0], True) for name in ("amax", "amin")),
    *(
        exact(getattr(aten, name).default, values)
        for name in ("max", "min")
        for values in (HARD, HARD[4:5], HARD[8], torch.tensor(math.nan))
    ),
    *(reduced(aten.linalg_vector_norm.default, HARD, order, [1]) for order in (1, 2, math.inf, -math.inf)),
    exact(aten.amax.default, X, [1], dynamic=DYNAMIC),
    exact(aten.amax.default, X),
    exact(aten.amax.default, SPECIAL, [1]),
    exact(aten.amin.default, I64, [-1], True),
    exact(aten.amin.default, SPECIAL, [1]),
    exact(aten.amax.default, torch.tensor(2.0), [0]),
    exact(aten.max.default, X),
    exact(aten.min.default, I32),
    *(
        exact(getattr(getattr(aten, name), overload), values, *args)
        for name in ("any", "all")
        for values in (FLAGS, X, I64)
        for overload, args in (
            ("default", ()),
            ("dim", (1,)),
            ("dim", (-1, True)),
            ("dims", ([0, 1],)),
            ("dims", ([],)),
            ("dims", (None, True)),
        )
    ),
    *(
        exact(getattr(getattr(aten, name), overload), values, *args, dynamic=((0, 1),))
        for name in ("any", "all")
        for values in (FLAGS, HARD)
        for overload, args in (("default", ()), ("dim", (1,)), ("dims", ([0, 1], True)))
    ),
    *(exact(getattr(aten, name).dim, values, 1) for name in ("any", "all") for values in (FLAGS[:, :0], X[:, :0])),
]

DISTINCT = torch.tensor([[math.nan, 3.0, -math.inf, 0.5], [math.inf, math.nan, 1.0, -2.0], [math.nan, math.inf, -math.inf, 7.0]])
"""Rows without ties, whose order PyTorch leaves open in ``topk``."""

ORDER = [
    *(exact(getattr(aten, name).default, HARD, dim) for name in ("argmax", "argmin") for dim in (1, 0, None)),
    *(exact(getattr(aten, name).default, HARD, 1, dynamic=((0, 0),)) for name in ("argmax", "argmin")),
    *(exact(getattr(aten, name).dim, HARD, dim) for name in ("max", "min") for dim in (1, 0)),
    *(exact(aten.sort.stable, HARD, stable=True, dim=dim, descending=down) for dim in (0, 1) for down in (False, True)),
    exact(aten.sort.stable, HARD, stable=True, dim=1, dynamic=((0, 0),)),
    *(exact(aten.topk.default, HARD, k, 1, largest, results=(0,)) for k in (1, 2, 3, 5, 8) for largest in (False, True)),
    *(exact(aten.topk.default, DISTINCT, k, 1, largest, dynamic=((0, 0),)) for k in (1, 2, 3, 4) for largest in (False, True)),
    exact(aten.argmax.default, X, 1),
    exact(aten.argmax.default, TIES, -1, True),
    exact(aten.argmax.default, X),
    exact(aten.argmax.default, X, None, True),
    exact(aten.argmax.default, SPECIAL, 1),
    exact(aten.argmax.default, torch.tensor(2.0)),
    exact(aten.argmax.default, X, 2, dynamic=DYNAMIC),
    exact(aten.argmin.default, TIES, -1),
    exact(aten.argmin.default, I64, 0),
    exact(aten.max.dim, X, 1, dynamic=DYNAMIC),
    exact(aten.max.dim, TIES, 1, True),
    exact(aten.max.dim, torch.tensor(2.0), 0),
    exact(aten.min.dim, I64, -1),
    exact(aten.topk.default, X, 3, 1),
    exact(aten.topk.default, X, 2, -1, False, dynamic=DYNAMIC),
    exact(aten.topk.default, I64, 2),
    exact(aten.sort.default, NO_TIES, 1),
    exact(aten.sort.default, NO_TIES, -1, True, dynamic=DYNAMIC),
    exact(aten.sort.stable, TIES, stable=True, dim=1),
    exact(aten.sort.stable, TIES, stable=True, dim=1, descending=True),
    exact(aten.sort.default, I32),
    exact(aten.sort.default, torch.tensor(2.0)),
]

CASES = SUMS + EXTREMES + ORDER
