"""Rows of operators that move elements: shapes, joins, indices, casts and new tensors."""

from __future__ import annotations

import torch

from torchkiln_testing import OpCase, OpClass, SizeOf

aten = torch.ops.aten
X = torch.arange(60.0).reshape(5, 3, 4) - 20
Z = torch.arange(30.0).reshape(5, 6)
I64 = torch.tensor([[1, 2**40, -3], [0, 5, 6]])
FLAGS = torch.tensor([[True, False, True], [False, False, True]])
SCALAR = torch.tensor(1.5)
EMPTY = torch.empty(2, 0, 3)
RANK8 = torch.arange(12.0).reshape(1, 2, 1, 3, 1, 2, 1, 1)
DYNAMIC = ((0, 0),)
BOTH = ((0, 0), (0, 1))


def exact(op, *args, dynamic=(), weights=(), results=None, **kwargs):
    return OpCase(op, args, kwargs, dynamic, weights, OpClass.EXACT, results)


VIEWS = [
    *(
        exact(op, X, shape, dynamic=dynamic)
        for op in (aten.view.default, aten._unsafe_view.default)
        for shape, dynamic in (
            ([15, 4], ()),
            ([-1, 12], DYNAMIC),
            ([-1], DYNAMIC),
            ([5, 2, 6], ()),
            ([SizeOf(0, 0), SizeOf(0, 1), 2, 2], BOTH),
        )
    ),
    exact(aten.view.default, EMPTY, [0, 6]),
    exact(aten.view.default, SCALAR, [1, 1]),
    exact(aten.view.default, FLAGS, [3, 2]),
    exact(aten.view.default, torch.arange(7.0).reshape(7, 1), [SizeOf(0, 0)], dynamic=DYNAMIC),
    exact(aten.unsqueeze.default, X, -1, dynamic=BOTH),
    exact(aten.unsqueeze.default, SCALAR, 0),
    exact(aten.squeeze.dim, X[:, :1], 1, dynamic=DYNAMIC),
    exact(aten.squeeze.dim, X, 1),
    exact(aten.squeeze.dims, X[:, :1, :1], [1, -1], dynamic=DYNAMIC),
    exact(aten.squeeze.default, RANK8),
    exact(aten.permute.default, X, [2, 0, -2], dynamic=DYNAMIC),
    exact(aten.permute.default, RANK8, [7, 6, 5, 4, 3, 2, 1, 0]),
    exact(aten.transpose.int, X, -1, 0),
    exact(aten.transpose.int, SCALAR, 0, -1),
    exact(aten.t.default, Z, dynamic=DYNAMIC),
    exact(aten.t.default, Z[0]),
    *(exact(aten.diagonal.default, X, offset, 1, 2) for offset in (0, 1, -1, -2, 3, 9, -9)),
    exact(aten.diagonal.default, X, 1, -1, 0),
    exact(aten.diagonal.default, X, dynamic=DYNAMIC),
    exact(aten.diagonal.default, X, 0, 2, 0, dynamic=BOTH),
    exact(aten.diagonal.default, X, 0, 0, 1, dynamic=BOTH),
    exact(aten.diagonal.default, X, -2, 2, 1, dynamic=DYNAMIC),
    exact(aten.diagonal.default, FLAGS),
    exact(aten.diagonal.default, I64, 1),
    exact(aten.diagonal.default, EMPTY, 0, 1, 2),
    exact(aten.as_strided.default, X, [5, 3, 4], [12, 4, 1]),
    exact(aten.expand.default, X[:, :1], [-1, 6, -1], dynamic=DYNAMIC),
    exact(aten.expand.default, X[:1], [2, 1, 3, 4]),
    exact(aten.expand.default, SCALAR, [2, 3]),
    exact(aten.expand.default, FLAGS[:, :1], [2, 4]),
    exact(aten.expand.default, X[:1, :1], [5, 3, 4]),
    exact(aten.repeat.default, X, [2, 1, 3], dynamic=DYNAMIC),
    exact(aten.repeat.default, Z, [2, 1, 2]),
    exact(aten.repeat.default, RANK8[:, :, :, :, 0, :, 0, 0], [1, 2, 1, 2, 2]),
    exact(aten.repeat.default, SCALAR, [3]),
    exact(aten.pixel_shuffle.default, torch.arange(96.0).reshape(2, 8, 2, 3), 2),
    exact(aten.pixel_shuffle.default, torch.arange(240.0).reshape(5, 8, 2, 3), 2, dynamic=DYNAMIC),
]

JOINS = [
    exact(aten.cat.default, [X, X + 1], 1, dynamic=((0, 0), (1, 0))),
    exact(aten.cat.default, [X, torch.empty(0), X], -1),
    exact(aten.cat.default, [X, X[:2]]),
    exact(aten.cat.default, [I64, FLAGS]),
    exact(aten.cat.default, [FLAGS, FLAGS], 1),
    exact(aten.cat.default, [X]),
    exact(aten.stack.default, [Z, Z + 1], -1, dynamic=((0, 0), (1, 0))),
    exact(aten.stack.default, [SCALAR, SCALAR]),
    exact(aten.split_with_sizes.default, Z, [1, 2, 3], 1, dynamic=DYNAMIC),
    exact(aten.split.Tensor, Z, 4, 1, dynamic=DYNAMIC),
    exact(aten.split.Tensor, Z, 2),
    exact(aten.split.Tensor, FLAGS, 1, -1),
    exact(aten.unbind.int, X, 1, dynamic=DYNAMIC),
    exact(aten.flip.default, X, [0, -1], dynamic=DYNAMIC),
    exact(aten.flip.default, I64, [1]),
    exact(aten.roll.default, X, [1, -1], [0, 2], dynamic=DYNAMIC),
    exact(aten.roll.default, Z, [7]),
    exact(aten.roll.default, I64, [-4], [1]),
    exact(aten.slice_scatter.default, X, X[:, :1] * 9, 1, 1, 2, dynamic=((0, 0), (1, 0))),
    exact(aten.slice_scatter.default, Z, Z[:, :2] * 9, 1, -2),
    exact(aten.slice_scatter.default, Z, Z * 9, 1),
    exact(aten.slice_scatter.default, torch.arange(5.0), torch.tensor([9.0, 8.0]), 0, 0, 2, dynamic=((0, 0),)),
    exact(aten.select_scatter.default, X, X[:, 0] * 9, 1, -1, dynamic=((0, 0), (1, 0))),
]

SLICES = [
    exact(aten.slice.Tensor, X, 0, 1, 3),
    exact(aten.slice.Tensor, X, 0, 1, 9223372036854775807, dynamic=DYNAMIC),
    exact(aten.slice.Tensor, X, 0, -2, 9223372036854775807, dynamic=DYNAMIC),
    exact(aten.slice.Tensor, X, 0, 0, -1, dynamic=DYNAMIC),
    exact(aten.slice.Tensor, X, 1, 0, 9, 2, dynamic=DYNAMIC),
    exact(aten.slice.Tensor, X, 0, None, None, 2, dynamic=DYNAMIC),
    exact(aten.slice.Tensor, X, -1, 7, 9),
    exact(aten.slice.Tensor, FLAGS, 1, 1, 3),
    exact(aten.slice.Tensor, I64, 1, -9, 2),
    exact(aten.select.int, X, 1, -1, dynamic=DYNAMIC),
    exact(aten.select.int, X, 0, -2, dynamic=DYNAMIC),
    exact(aten.select.int, FLAGS, 0, 1),
    exact(aten.select.int, Z[0], 0, 2),
]

INDICES = [
    exact(aten.embedding.default, Z, torch.tensor([[0, 4], [2, 2]]), weights=(0,)),
    exact(aten.embedding.default, Z, torch.tensor([3, 1, 4, 0, 2, 2, 1]), dynamic=((1, 0),), weights=(0,)),
    exact(aten.embedding.default, Z, torch.tensor([0, 4], dtype=torch.int32)),
    exact(aten.index_select.default, X, 1, torch.tensor([2, 0]), dynamic=DYNAMIC),
    exact(aten.index_select.default, X, -1, torch.tensor(3)),
    exact(aten.gather.default, Z, 1, torch.tensor([[0, 5], [1, 1], [2, 3], [4, 4], [5, 0]]), dynamic=((0, 0), (1, 0))),
    exact(aten.gather.default, Z, 0, torch.tensor([[0, 4, 1]])),
    exact(aten.gather.default, Z[0], -1, torch.tensor(2)),
    exact(aten.index.Tensor, X, [torch.tensor([0, -1, 2])]),
    exact(aten.index.Tensor, X, [None, torch.tensor([[0, -1], [2, 2]])], dynamic=DYNAMIC),
    exact(aten.index.Tensor, X, [torch.tensor([0, 4]), torch.tensor([-1, 1])]),
    exact(aten.index.Tensor, X, [None, torch.tensor([[0], [2]]), torch.tensor([-1, 1, 0])], dynamic=DYNAMIC),
    exact(aten.index.Tensor, X, [torch.tensor([0, 4]), None, torch.tensor([3, 1])]),
    exact(aten.index.Tensor, FLAGS, [torch.tensor([1, 0])]),
    exact(aten.scatter.src, Z, 1, torch.tensor([[0, 5], [1, 2], [3, 4]]), Z[:, :4] * 9),
    exact(aten.scatter.value, Z, 0, torch.tensor([[0, 4, 1]]), 7.5),
    exact(aten.scatter.value, Z[0], 0, torch.tensor(2), 7.5),
    exact(aten.scatter.src, Z[0], -1, torch.tensor(2), Z[0, 0] * 9),
    exact(aten.index_put.default, X, [torch.tensor([0, -1])], X[:2] * 9),
    exact(aten.index_put.default, X, [torch.tensor([0, 4]), torch.tensor([-1, 1])], SCALAR),
    exact(aten.index_put.default, I64, [torch.tensor([0, 1]), torch.tensor([1, 2])], torch.tensor([8, 9])),
]

PADDING = [
    exact(aten.constant_pad_nd.default, X, [1, 2], 0.5, dynamic=DYNAMIC),
    exact(aten.constant_pad_nd.default, X, [1, -1, 0, 2, 1, 0], dynamic=DYNAMIC),
    exact(aten.constant_pad_nd.default, FLAGS, [1, 0], True),
    exact(aten.constant_pad_nd.default, I64, [0, 1], -7),
    exact(aten.constant_pad_nd.default, X, [0, 0]),
    exact(aten.reflection_pad1d.default, X, [2, 1], dynamic=DYNAMIC),
    exact(aten.reflection_pad2d.default, X, [2, 1, 1, 2]),
    exact(aten.reflection_pad3d.default, X[None], [2, 1, 1, 1, 2, 1]),
    exact(aten.replication_pad1d.default, X, [5, 1], dynamic=DYNAMIC),
    exact(aten.replication_pad2d.default, X, [2, 1, 1, 2]),
    exact(aten.replication_pad3d.default, X[None], [2, 1, 1, 1, 2, 1]),
    exact(aten.tril.default, X, -1, dynamic=DYNAMIC),
    exact(aten.tril.default, Z, dynamic=DYNAMIC),
    exact(aten.triu.default, Z, 1, dynamic=DYNAMIC),
    exact(aten.triu.default, I64),
]

CASTS = [
    *(
        exact(aten._to_copy.default, source, dtype=dtype)
        for source in (torch.tensor([-1.75, 0.0, 0.25, 2.5]), I64 % 100, FLAGS, torch.tensor([0, 3], dtype=torch.int32))
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool)
    ),
    exact(aten._to_copy.default, torch.tensor([0, 200], dtype=torch.uint8), dtype=torch.float32),
    exact(aten._to_copy.default, torch.tensor([0, -100], dtype=torch.int8), dtype=torch.int64),
    exact(aten._to_copy.default, torch.tensor([0, 200], dtype=torch.uint8), dtype=torch.bool),
    exact(aten._to_copy.default, X, dtype=None, dynamic=DYNAMIC),
    *(
        exact(op, X, dynamic=DYNAMIC)
        for op in (aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default, aten.lift_fresh.default)
    ),
    exact(aten.copy.default, X, Z[0, :4]),
    exact(aten.copy.default, X, I64[0, :1]),
]

CREATION = [
    exact(aten.full.default, [2, 3], 1.5),
    exact(aten.full.default, [], 7),
    exact(aten.full.default, [2, 0], True),
    exact(aten.full_like.default, X, 2, dynamic=BOTH),
    exact(aten.full_like.default, I64, 2, dtype=torch.float32),
    exact(aten.new_full.default, X, [SizeOf(0, 0), 2], 3, dynamic=DYNAMIC),
    exact(aten.zeros.default, [2, 3], dtype=torch.int64),
    exact(aten.ones.default, [2, 3], dtype=torch.bool),
    exact(aten.zeros_like.default, X, dynamic=DYNAMIC),
    exact(aten.ones_like.default, FLAGS),
    exact(aten.new_zeros.default, X, [SizeOf(0, 0, 1)], dynamic=DYNAMIC),
    exact(aten.new_ones.default, X, [2]),
    exact(aten.scalar_tensor.default, 2.5),
    exact(aten.scalar_tensor.default, 3, dtype=torch.int64),
    exact(aten.fill.Scalar, X, 3, dynamic=DYNAMIC),
    exact(aten.fill.Tensor, X, SCALAR),
    exact(aten.arange.default, 5),
    exact(aten.arange.default, 5, dtype=torch.float32),
    exact(aten.arange.start, 2, 5),
    exact(aten.arange.start_step, 1, 10, 3),
    exact(aten.arange.start_step, 5, 0, -2),
    OpCase(aten.arange.start_step, (0.5, 3.0, 0.25)),
]

PIXELS = torch.arange(120.0).reshape(5, 2, 3, 4)
SIGNAL, VOLUME = PIXELS.reshape(5, 2, 12), PIXELS[:, :, :, :, None].repeat(1, 1, 1, 1, 2) + torch.tensor([0.0, 0.25])
SIDES = ((0, 0), (0, 2), (0, 3))


def smooth(op, *args, dynamic=(), **kwargs):
    return OpCase(op, args, kwargs, dynamic, op_class=OpClass.REDUCTION)


RESIZES = [
    exact(aten.upsample_nearest2d.vec, PIXELS, None, [2.0, 3.0], dynamic=DYNAMIC),
    exact(aten.upsample_nearest2d.vec, PIXELS, [3, 28], None),
    exact(aten.upsample_nearest2d.vec, PIXELS, [7, 3], None, dynamic=DYNAMIC),
    exact(aten.upsample_nearest2d.vec, PIXELS, [7, 11], None, dynamic=SIDES),
    exact(aten.upsample_nearest2d.vec, PIXELS, None, [3.0, 2.0], dynamic=SIDES),
    exact(aten.upsample_nearest2d.default, PIXELS, [SizeOf(0, 3, 1), SizeOf(0, 2, 2)], dynamic=SIDES),
    exact(aten.upsample_nearest2d.default, PIXELS, [4, 2]),
    exact(aten.upsample_nearest2d.default, PIXELS, [6, 5], 2.0),
    exact(aten.upsample_nearest1d.vec, SIGNAL, None, [1.5]),
    exact(aten.upsample_nearest1d.default, SIGNAL, [24], dynamic=DYNAMIC),
    exact(aten.upsample_nearest3d.vec, VOLUME, [4, 2, 4], None),
    exact(aten.upsample_nearest3d.default, VOLUME, [6, 8, 4]),
    exact(aten._upsample_nearest_exact1d.vec, SIGNAL, None, [0.5]),
    exact(aten._upsample_nearest_exact1d.default, SIGNAL, [5]),
    exact(aten._upsample_nearest_exact2d.vec, PIXELS, [7, 8], None, dynamic=DYNAMIC),
    exact(aten._upsample_nearest_exact2d.vec, PIXELS, [SizeOf(0, 3, 1), 49], None, dynamic=SIDES),
    exact(aten._upsample_nearest_exact2d.default, PIXELS, [6, 3]),
    exact(aten._upsample_nearest_exact3d.vec, VOLUME, [2, 4, 3], None),
    exact(aten._upsample_nearest_exact3d.default, VOLUME, [3, 6, 2]),
    smooth(aten.upsample_linear1d.vec, SIGNAL / 120, [7], False, None),
    smooth(aten.upsample_linear1d.default, SIGNAL / 120, [25], True, dynamic=DYNAMIC),
    smooth(aten.upsample_bilinear2d.vec, PIXELS / 120, None, False, [2.0, 2.0], dynamic=DYNAMIC),
    smooth(aten.upsample_bilinear2d.vec, PIXELS / 120, [5, 3], True, None, dynamic=SIDES),
    smooth(aten.upsample_bilinear2d.default, PIXELS / 120, [6, 4], False, 2.0, dynamic=DYNAMIC),
    smooth(aten.upsample_bilinear2d.default, PIXELS / 120, [1, 9], True),
    smooth(aten.upsample_trilinear3d.vec, VOLUME / 120, [5, 2, 4], False, None),
    smooth(aten.upsample_trilinear3d.default, VOLUME / 120, [3, 8, 3], True),
    smooth(aten.upsample_bicubic2d.vec, PIXELS / 120, None, False, [2.0, 0.5]),
    smooth(aten.upsample_bicubic2d.default, PIXELS / 120, [5, 9], True, dynamic=DYNAMIC),
]

# Places inside, on the borders, between pixels and outside; multiples of 1/8 are exact in every dtype.
PLACES = (torch.arange(60.0).reshape(5, 3, 2, 2) * 7 % 23 - 11) / 8
DEPTHS = (torch.arange(90.0).reshape(5, 3, 2, 1, 3) * 7 % 23 - 11) / 8
BATCH = ((0, 0), (1, 0))
SAMPLES = [
    *(
        smooth(aten.grid_sampler_2d.default, PIXELS / 128, PLACES, mode, padding, aligned, dynamic=BATCH if aligned else ())
        for mode in range(3)
        for padding in range(3)
        for aligned in (False, True)
    ),
    *(
        smooth(aten.grid_sampler_3d.default, VOLUME / 128, DEPTHS, mode, padding, aligned)
        for mode in range(2)
        for padding, aligned in ((0, False), (1, True), (2, False))
    ),
    smooth(aten.grid_sampler.default, PIXELS / 128, PLACES, 0, 0, False, dynamic=((0, 0), (0, 2), (1, 0), (1, 1))),
    smooth(aten.grid_sampler.default, VOLUME / 128, DEPTHS[:, :0], 1, 0, False),
]

CASES = RESIZES + SAMPLES + VIEWS + JOINS + SLICES + INDICES + PADDING + CASTS + CREATION
