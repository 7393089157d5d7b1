"""Rows of the layers that move, join, reduce or multiply."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from core_layer_cases import Case, Sizes, T

from torchkiln_core.layers import (
    Concatenation,
    Convolution,
    Cumulative,
    CumulativeOp,
    Deconvolution,
    Gather,
    GatherMode,
    MatrixMultiply,
    MatrixOp,
    Normalization,
    Pooling,
    PoolingKind,
    Reduce,
    ReduceOp,
    Scatter,
    ScatterMode,
    Slice,
    SliceMode,
    Softmax,
    TopK,
    TopKOp,
)
from torchkiln_testing import OpClass

F16, BF16, I32, I64 = torch.float16, torch.bfloat16, torch.int32, torch.int64
REDUCTION, MATMUL = OpClass.REDUCTION, OpClass.MATMUL
NONE, TRANSPOSE, VECTOR = MatrixOp.NONE, MatrixOp.TRANSPOSE, MatrixOp.VECTOR


def _pad(x, pairs, mode):
    return F.pad(x[None], pairs, mode=mode)[0]


MOVES = [
    Case("slice-step", Slice((1, 0), (2, 3), (2, 1)), (T((5, 3)),), lambda x: x[1:5:2]),
    Case("slice-backwards", Slice((4, 0), (5, 2), (-1, 1)), (T((5, 2)),), lambda x: x.flip(0)),
    Case("slice-repeat", Slice((0, 0), (4, 2), (0, 1)), (T((1, 2)),), lambda x: x.expand(4, 2)),
    Case("slice-empty", Slice((2, 0), (0, 2), (1, 1)), (T((3, 2)),), lambda x: x[:0]),
    Case("slice-scalar", Slice((), (), ()), (T(()),), lambda x: x),
    Case("slice-sizes", Slice((1, 0), None, (1, 1)), (T(("n", "m")), None, Sizes(("n - 1", "m"))), lambda x: x[1:]),
    Case("slice-start", Slice(None, (2, 3), (1, 1)), (T(("n", 3)), Sizes(("n - 2", 0))), lambda x: x[-2:]),
    Case(
        "slice-all-operands",
        Slice(None, None, None),
        (T(("n",)), Sizes((1,)), Sizes(("(n - 1)//2",)), Sizes((2,))),
        lambda x: x[1 : 1 + (x.numel() - 1) // 2 * 2 : 2],
    ),
    Case("slice-expand", Slice((0, 0), None, (0, 1)), (T((1, 2)), None, Sizes(("n", 2))), lambda x, n: x.expand(n, 2), sizes=("n",)),
    Case("slice-reflect", Slice((0, -2), (2, 9), (1, 1), SliceMode.REFLECT), (T((2, 5)),), lambda x: _pad(x, (2, 2), "reflect")),
    Case("slice-clamp", Slice((0, -3), (2, 9), (1, 1), SliceMode.CLAMP), (T((2, 4)),), lambda x: _pad(x, (3, 2), "replicate")),
    Case("slice-wrap", Slice((0, -2), (2, 7), (1, 1), SliceMode.WRAP), (T((2, 4)),), lambda x: _pad(x, (2, 1), "circular")),
    Case("slice-fill-zero", Slice((-1, 0), (4, 5), (1, 1), SliceMode.FILL), (T((2, 4)),), lambda x: F.pad(x, (0, 1, 1, 1))),
    Case(
        "slice-fill",
        Slice((-1, -2), None, (1, 1), SliceMode.FILL),
        (T(("n", "m")), None, Sizes(("n + 2", "m + 2")), None, T((1, 1))),
        lambda x, fill: torch.where(F.pad(torch.ones_like(x), (2, 0, 1, 1)) == 1, F.pad(x, (2, 0, 1, 1)), fill),
    ),
    Case("slice-fill-of-nothing", Slice((0, 0), (2, 3), (1, 1), SliceMode.FILL), (T((0, 3)),), lambda x: torch.zeros(2, 3)),
    Case("concatenation", Concatenation(1), (T(("n", "m")), T(("n", 2)), T(("n", "m"))), lambda *xs: torch.cat(xs, 1)),
    Case("concatenation-empty", Concatenation(0), (T((0, 2), I64), T((3, 2), I64, 0, 9)), lambda *xs: xs[1]),
    Case("gather", Gather(GatherMode.DEFAULT, 1), (T(("n", 6, 2)), T((3, "m"), I32, 0, 6)), lambda x, i: x[:, i.long()]),
    Case("gather-embedding", Gather(GatherMode.DEFAULT, 0), (T((9, 4)), T(("n", "m"), I64, 0, 9)), lambda x, i: F.embedding(i, x)),
    Case("gather-scalar", Gather(GatherMode.DEFAULT, 0), (T((3, "m")), T((), I64, 0, 3)), lambda x, i: x[i]),
    Case("gather-element", Gather(GatherMode.ELEMENT, 1), (T(("n", 4)), T(("n", "m"), I64, 0, 4)), lambda x, i: x.gather(1, i)),
    Case("gather-nd", Gather(GatherMode.ND), (T((3, 3, "n")), T(("m", 2), I64, 0, 3)), lambda x, i: x[i[:, 0], i[:, 1]]),
    Case(
        "gather-nd-batch",
        Gather(GatherMode.ND, batch_dims=1),
        (T(("n", 6, 2)), T(("n", 3, 1), I32, 0, 6)),
        lambda x, i: torch.stack([row[at[:, 0].long()] for row, at in zip(x, i, strict=True)]),
    ),
    Case(
        "scatter-element",
        Scatter(ScatterMode.ELEMENT, 0),
        (T((1, "n")), T((1, "n"), I64, 0, 1), T((1, "n"))),
        lambda x, i, updates: updates,
    ),
    Case(
        "scatter-nd",
        Scatter(ScatterMode.ND),
        (T((3, "n")), T((1, 1), I32, 0, 3), T((1, "n"))),
        lambda x, i, u: x.index_copy(0, i[0].long(), u),
    ),
]
REDUCTIONS = [
    Case("reduce-sum", Reduce(ReduceOp.SUM, (0, 2), True), (T(("n", 3, "m")),), lambda x: x.sum((0, 2), keepdim=True), REDUCTION),
    Case("reduce-sum-int32", Reduce(ReduceOp.SUM, (0,), False), (T(("n", 3), I32, 0, 9),), lambda x: x.sum(0).to(I32)),
    Case("reduce-mean", Reduce(ReduceOp.AVG, (1,), False), (T(("n", "m")),), lambda x: x.sum(1) / x.shape[1], REDUCTION),
    Case("reduce-max", Reduce(ReduceOp.MAX, (1, 0), False), (T(("n", "m")),), lambda x: x.max()),
    Case("reduce-min-int64", Reduce(ReduceOp.MIN, (0,), True), (T(("n", 2), I64, -9, 9),), lambda x: x.min(0, keepdim=True).values),
    Case("reduce-prod", Reduce(ReduceOp.PROD, (0, 2), False), (T((2, "n", 3)),), lambda x: x.prod(2).prod(0), REDUCTION),
    Case("softmax", Softmax(1), (T(("n", "m")),), lambda x: x.exp() / x.exp().sum(1, keepdim=True), REDUCTION),
    Case("topk-max", TopK(TopKOp.MAX, 2, 1), (T(("n", 6)),), lambda x: (x.topk(2, 1).values, x.topk(2, 1).indices.int())),
    Case("topk-min", TopK(TopKOp.MIN, 3, 0), (T((4, "n")),), lambda x: (x.sort(0).values[:3], x.argsort(0)[:3].int())),
    Case("topk-ties", TopK(TopKOp.MAX, 3, 0), (T((5,), I32, 1, 2),), lambda x: (x[:3], torch.arange(3, dtype=I32))),
    Case(
        "cumulative",
        Cumulative(CumulativeOp.SUM, 0),
        (T(("n", "m")),),
        lambda x: torch.stack([x[: i + 1].sum(0) for i in range(len(x))]),
        REDUCTION,
    ),
    Case("cumulative-int32", Cumulative(CumulativeOp.SUM, 1), (T((2, "n"), I32, 0, 9),), lambda x: x.cumsum(1).int()),
    Case(
        "layer-norm",
        Normalization((2,), 1e-5),
        (T(("n", "m", 6)), T((1, 1, 6)), T((1, 1, 6))),
        lambda x, w, b: F.layer_norm(x, (6,), w.flatten(), b.flatten(), 1e-5),
        REDUCTION,
    ),
    Case(
        "layer-norm-half",
        Normalization((1,), 1e-3),
        (T(("n", 6), F16), T((1, 6), F16), T((1, 6), F16)),
        lambda x, w, b: F.layer_norm(x, (6,), w.flatten(), b.flatten(), 1e-3),
        REDUCTION,
    ),
    Case(
        "group-norm",
        Normalization((2, 3), 1e-5, groups=3),
        (T(("n", 6, 2, "m")), T((1, 6, 1, 1)), T((1, 6, 1, 1))),
        lambda x, w, b: F.group_norm(x, 3, w.flatten(), b.flatten(), 1e-5),
        REDUCTION,
    ),
]
PRODUCTS = [
    Case("matmul", MatrixMultiply(), (T(("n", 2, "m")), T(("n", "m", 3))), torch.bmm, MATMUL),
    Case(
        "matmul-broadcast",
        MatrixMultiply(),
        (T(("n", 2, "m", 3)), T((1, 2, 3, 4))),
        lambda a, b: torch.einsum("nbmk,obkl->nbml", a, b),
        MATMUL,
    ),
    Case("matmul-transposed", MatrixMultiply(TRANSPOSE, TRANSPOSE), (T(("m", "n")), T((3, "m"))), lambda a, b: (b @ a).t(), MATMUL),
    Case("matmul-attention", MatrixMultiply(NONE, TRANSPOSE), (T(("n", 2, "m", 8)), T(("n", 2, "m", 8))), lambda a, b: a @ b.mT, MATMUL),
    Case(
        "matmul-vector", MatrixMultiply(NONE, VECTOR), (T(("n", 2, 3)), T(("n", 3))), lambda a, b: torch.einsum("nmk,nk->nm", a, b), MATMUL
    ),
    Case("vector-matmul", MatrixMultiply(VECTOR, NONE), (T(("n",)), T(("n", "m"))), lambda a, b: torch.einsum("k,km->m", a, b), MATMUL),
    Case("vector-vector", MatrixMultiply(VECTOR, VECTOR), (T(("n", 3)), T(("n", 3))), lambda a, b: (a * b).sum(1), MATMUL),
    Case("matmul-bfloat16", MatrixMultiply(), (T(("n", 4), BF16), T((4, 2), BF16)), torch.mm, MATMUL),
    Case(
        "convolution",
        Convolution((2, 1), (1, 0), (1, 0), (1, 2)),
        (T(("n", 3, 7, 8)), T((4, 3, 3, 2)), T((4,))),
        lambda x, w, b: F.conv2d(x, w, b, (2, 1), (1, 0), (1, 2)),
        MATMUL,
    ),
    Case(
        "convolution-image",
        Convolution((2, 2), (1, 1), (1, 1), (1, 1)),
        (T((1, 3, "2*n", "2*m + 1")), T((4, 3, 3, 3))),
        lambda x, w: F.conv2d(x, w, None, 2, 1),
        MATMUL,
    ),
    Case(
        "convolution-groups",
        Convolution((1, 1), (0, 0), (0, 0), (1, 1), 2),
        (T(("n", 4, 5, 5)), T((6, 2, 3, 3))),
        lambda x, w: F.conv2d(x, w, groups=2),
        MATMUL,
    ),
    Case(
        "convolution-uneven",
        Convolution((1, 2), (0, 2), (1, 1), (1, 1)),
        (T((1, 2, "n", 6)), T((3, 2, 2, 3))),
        lambda x, w: F.conv2d(F.pad(x, (2, 1, 0, 1)), w, None, (1, 2)),
        MATMUL,
    ),
    Case(
        "convolution-3d",
        Convolution((1, 2, 1), (1, 0, 1), (1, 0, 1), (1, 1, 1)),
        (T(("n", 2, 4, 5, 4)), T((3, 2, 3, 2, 3)), T((3,))),
        lambda x, w, b: F.conv3d(x, w, b, (1, 2, 1), (1, 0, 1)),
        MATMUL,
    ),
    Case(
        "deconvolution",
        Deconvolution((2, 2), (1, 1), (1, 1), (1, 1)),
        (T((1, 2, "n", "m")), T((2, 3, 3, 3)), T((3,))),
        lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1),
        MATMUL,
    ),
    Case(
        "deconvolution-output-padding",
        Deconvolution((2, 2), (1, 1), (0, 0), (1, 1)),
        (T((1, 2, "n", 4)), T((2, 3, 3, 3)), T((3,))),
        lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1),
        MATMUL,
    ),
    Case(
        "deconvolution-groups",
        Deconvolution((1, 2), (0, 1), (0, 1), (2, 1), 2),
        (T(("n", 4, 3, 3)), T((4, 3, 2, 3))),
        lambda x, w: F.conv_transpose2d(x, w, None, (1, 2), (0, 1), 0, 2, (2, 1)),
        MATMUL,
    ),
    Case(
        "deconvolution-3d",
        Deconvolution((2, 1, 1), (0, 1, 0), (0, 1, 0), (1, 1, 1)),
        (T(("n", 2, 2, 3, 3)), T((2, 3, 2, 3, 1))),
        lambda x, w: F.conv_transpose3d(x, w, None, (2, 1, 1), (0, 1, 0)),
        MATMUL,
    ),
    Case(
        "pool-max",
        Pooling(PoolingKind.MAX, (3, 2), (2, 2), (1, 0), (1, 0)),
        (T(("n", 3, "2*m", 6), low=-3, high=-1),),
        lambda x: F.max_pool2d(x, (3, 2), 2, (1, 0)),
    ),
    Case(
        "pool-average",
        Pooling(PoolingKind.AVERAGE, (3, 3), (2, 1), (1, 1), (1, 1), True),
        (T(("n", 2, "m", 5)),),
        lambda x: F.avg_pool2d(x, 3, (2, 1), 1),
        MATMUL,
    ),
    Case(
        "pool-average-valid",
        Pooling(PoolingKind.AVERAGE, (3, 3), (2, 1), (1, 1), (1, 1)),
        (T(("n", 2, "m", 5)),),
        lambda x: F.avg_pool2d(x, 3, (2, 1), 1, count_include_pad=False),
        MATMUL,
    ),
    Case(
        "pool-average-uneven",
        Pooling(PoolingKind.AVERAGE, (2, 2), (2, 2), (0, 0), (1, 1)),
        (T((1, 1, 3, 3)),),
        lambda x: F.avg_pool2d(x, 2, 2, ceil_mode=True),
        MATMUL,
    ),
    Case(
        "pool-3d",
        Pooling(PoolingKind.MAX, (2, 2, 2), (2, 2, 1), (0, 0, 0), (0, 0, 0)),
        (T(("n", 2, 4, 4, "m")),),
        lambda x: F.max_pool3d(x, 2, (2, 2, 1)),
    ),
    Case(
        "pool-average-3d",
        Pooling(PoolingKind.AVERAGE, (2, 2, 2), (2, 2, 2), (1, 0, 0), (1, 0, 0)),
        (T((1, 2, "2*n", 4, 4)),),
        lambda x: F.avg_pool3d(x, 2, 2, (1, 0, 0), count_include_pad=False),
        MATMUL,
    ),
]
ROWS = [*MOVES, *REDUCTIONS, *PRODUCTS]
