"""Rows of products, convolutions, pooling, normalization and attention."""

from __future__ import annotations

import math

import torch

from torchkiln_testing import OpCase, OpClass

aten = torch.ops.aten
GENERATOR = torch.Generator().manual_seed(0)


def rand(*shape):
    return torch.randn(*shape, generator=GENERATOR)


def product(op, *args, dynamic=(), weights=(), results=None, **kwargs):
    return OpCase(op, args, kwargs, dynamic, weights, OpClass.MATMUL, results)


def reduced(op, *args, dynamic=(), weights=(), results=None, **kwargs):
    return OpCase(op, args, kwargs, dynamic, weights, OpClass.REDUCTION, results)


def partial(op, *args, dynamic=(), weights=(), results=None, **kwargs):
    return OpCase(op, args, kwargs, dynamic, weights, OpClass.PARTIAL, results)


PRODUCTS = [
    product(aten.mm.default, rand(3, 4), rand(4, 5)),
    product(aten.mm.default, rand(3, 4), rand(5, 4).t(), dynamic=((0, 0),)),
    product(aten.bmm.default, rand(2, 3, 4), rand(2, 4, 5)),
    product(aten.bmm.default, rand(5, 3, 4), rand(5, 4, 5), dynamic=((0, 0), (1, 0))),
    product(aten.mv.default, rand(3, 4), rand(4)),
    product(aten.dot.default, rand(4), rand(4)),
    product(aten.addmm.default, rand(5), rand(3, 4), rand(4, 5)),
    product(aten.addmm.default, rand(3, 5), rand(3, 4), rand(4, 5), beta=0.3, alpha=0.7),
    product(aten.addmm.default, torch.full((5,), math.nan), rand(3, 4), rand(4, 5), beta=0),
    product(aten.addmv.default, rand(3), rand(3, 4), rand(4)),
    product(aten.baddbmm.default, rand(2, 3, 5), rand(2, 3, 4), rand(2, 4, 5), alpha=0.5),
    product(aten.matmul.default, rand(4), rand(4)),
    product(aten.matmul.default, rand(4), rand(4, 5)),
    product(aten.matmul.default, rand(3, 4), rand(4)),
    product(aten.matmul.default, rand(4), rand(2, 6, 4, 5)),
    product(aten.matmul.default, rand(2, 6, 3, 4), rand(4)),
    product(aten.matmul.default, rand(2, 1, 3, 4), rand(6, 4, 5)),
    product(aten.matmul.default, rand(5, 3, 4), rand(4, 5), dynamic=((0, 0),)),
    product(aten.linear.default, rand(2, 3, 4), rand(5, 4), rand(5), weights=(1, 2)),
    product(aten.linear.default, rand(7, 3, 4), rand(5, 4), dynamic=((0, 0), (0, 1)), weights=(1,)),
    product(aten.linear.default, rand(4), rand(5, 4), rand(5)),
    product(aten.linear.default, rand(3, 4), rand(4)),
]


def conv(input, weight, bias, stride, padding, dilation, transposed, extra, groups, **kwargs):
    return product(aten.convolution.default, input, weight, bias, stride, padding, dilation, transposed, extra, groups, **kwargs)


CONVOLUTIONS = [
    conv(rand(2, 3, 9), rand(4, 3, 3), rand(4), [2], [1], [1], False, [0], 1, weights=(1, 2)),
    conv(rand(5, 3, 9), rand(4, 3, 3), None, [1], [2], [2], False, [0], 1, dynamic=((0, 0),), weights=(1,)),
    conv(rand(5, 4, 9, 7), rand(6, 2, 3, 3), rand(6), [1, 2], [1, 0], [1, 1], False, [0, 0], 2, dynamic=((0, 0), (0, 2)), weights=(1, 2)),
    conv(rand(2, 4, 9, 7), rand(4, 1, 3, 3), None, [1, 1], [1, 1], [2, 1], False, [0, 0], 4, weights=(1,)),
    conv(rand(2, 3, 5, 5), rand(4, 3, 3, 3), rand(4), [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    conv(rand(1, 2, 5, 6, 4), rand(3, 2, 2, 3, 2), rand(3), [1, 2, 1], [1, 1, 0], [1, 1, 1], False, [0, 0, 0], 1, weights=(1, 2)),
    conv(rand(2, 3, 5), rand(3, 4, 3), rand(4), [2], [1], [1], True, [1], 1, weights=(1, 2)),
    conv(rand(5, 4, 5, 4), rand(4, 3, 3, 3), rand(6), [2, 1], [1, 0], [1, 1], True, [1, 0], 2, dynamic=((0, 0),), weights=(1, 2)),
    conv(rand(1, 2, 3, 4, 3), rand(2, 3, 2, 2, 2), None, [2, 2, 2], [0, 0, 0], [1, 1, 1], True, [0, 0, 0], 1, weights=(1,)),
    product(aten.conv1d.default, rand(5, 3, 9), rand(4, 3, 3), rand(4), [2], [1], dynamic=((0, 0),), weights=(1, 2)),
    product(aten.conv1d.padding, rand(2, 4, 9), rand(6, 2, 4), None, [1], "same", [2], 2, weights=(1,)),
    product(aten.conv2d.default, rand(5, 3, 9, 7), rand(4, 3, 3, 3), rand(4), [1, 2], [1, 0], dynamic=((0, 0), (0, 2)), weights=(1, 2)),
    product(aten.conv2d.padding, rand(5, 3, 9, 7), rand(4, 3, 3, 5), rand(4), [1, 1], "same", dynamic=((0, 0),), weights=(1, 2)),
    product(aten.conv2d.padding, rand(2, 3, 9, 7), rand(4, 3, 3, 3), None, [2, 2], "valid", weights=(1,)),
    product(aten.conv3d.default, rand(1, 2, 5, 6, 4), rand(3, 2, 2, 3, 2), None, [1, 2, 1], [1, 1, 0], weights=(1,)),
    product(aten.conv3d.padding, rand(1, 2, 5, 6, 4), rand(3, 2, 1, 3, 3), rand(3), [1, 1, 1], "same", weights=(1, 2)),
    product(aten.conv_transpose1d.default, rand(2, 3, 5), rand(3, 4, 3), rand(4), [2], [1], [1], weights=(1, 2)),
    product(aten.conv_transpose2d.input, rand(5, 4, 5, 4), rand(4, 2, 2, 2), rand(4), [2, 1], [1, 0], [1, 0], 2, dynamic=((0, 0),)),
    product(aten.conv_transpose3d.input, rand(1, 2, 3, 4, 3), rand(2, 3, 2, 2, 2), None, [2, 2, 2], weights=(1,)),
    conv(rand(2, 3, 5), rand(3, 4, 3), rand(4), [3], [1], [1], True, [2], 1, dynamic=((0, 0), (0, 2)), weights=(1, 2)),
    conv(rand(2, 4, 5), rand(4, 2, 2), None, [1], [0], [3], True, [2], 2, weights=(1,)),
    conv(rand(2, 4, 5, 4), rand(4, 3, 3, 3), rand(6), [2, 3], [1, 0], [1, 1], True, [0, 2], 2, dynamic=((0, 0),), weights=(1, 2)),
    conv(rand(2, 4, 1, 1), rand(4, 3, 1, 1), rand(3), [4, 4], [0, 0], [1, 1], True, [3, 1], 1),
    conv(rand(1, 2, 3, 4, 3), rand(2, 3, 2, 2, 2), rand(3), [2, 2, 2], [0, 1, 0], [1, 1, 1], True, [1, 0, 1], 1, weights=(1, 2)),
    product(aten.conv_transpose1d.default, rand(2, 3, 5), rand(3, 4, 3), rand(4), [2], [0], [1], weights=(1, 2)),
    product(aten.conv_transpose2d.input, rand(5, 4, 5, 4), rand(4, 2, 2, 3), None, [2, 3], [0, 0], [1, 2], 2, dynamic=((0, 0),)),
    product(aten.conv_transpose2d.input, rand(2, 4, 5, 4), rand(4, 2, 3, 3), None, [1, 1], [1, 0], [1, 1], 1, [2, 2]),
    product(
        aten.conv_transpose3d.input, rand(1, 2, 3, 4, 3), rand(2, 3, 2, 2, 2), rand(3), [2, 2, 3], [0, 0, 0], [1, 0, 2], weights=(1, 2)
    ),
    product(
        aten._native_batch_norm_legit_no_training.default,
        *(rand(5, 3, 4, 4), rand(3), rand(3), rand(3), rand(3).abs() + 0.1, 0.1, 1e-5),
        results=(0,),
        dynamic=((0, 0),),
        weights=(1, 2, 3, 4),
    ),
    product(
        aten._native_batch_norm_legit_no_training.default,
        *(rand(5, 3), None, None, rand(3), rand(3).abs() + 0.1, 0.1, 1e-3),
        results=(0,),
    ),
]

POOLING = [
    reduced(aten.max_pool2d_with_indices.default, rand(5, 3, 9, 8), [3, 2], [2, 2], [1, 0], results=(0,), dynamic=((0, 0), (0, 2))),
    reduced(aten.max_pool2d_with_indices.default, rand(3, 9, 8), [3, 3], results=(0,)),
    reduced(aten.max_pool2d_with_indices.default, rand(2, 3, 9, 8), [3, 3], [2, 2], [1, 1], [1, 1], True, results=(0,)),
    reduced(aten.max_pool2d_with_indices.default, -rand(2, 3, 6, 6).abs(), [2, 2], [2, 2], [1, 1], results=(0,)),
    reduced(aten.max_pool3d_with_indices.default, rand(1, 2, 6, 5, 4), [2, 2, 2], results=(0,)),
    reduced(aten.avg_pool2d.default, rand(5, 3, 9, 8), [3, 2], [2, 2], [1, 0], dynamic=((0, 0),)),
    reduced(aten.avg_pool2d.default, rand(2, 3, 9, 8), [3, 3], [2, 2], [1, 1], False, False),
    reduced(aten.avg_pool2d.default, rand(3, 9, 8), [3, 3]),
    reduced(aten.avg_pool2d.default, rand(5, 3, 9, 8), [3, 3], [2, 2], [0, 0], True, dynamic=((0, 0),)),
    reduced(aten.avg_pool2d.default, rand(5, 3, 8, 10), [3, 2], [2, 3], [1, 1], True, dynamic=((0, 0),)),
    reduced(aten.avg_pool2d.default, rand(2, 3, 8, 10), [3, 2], [2, 3], [1, 1], True, False),
    reduced(aten.avg_pool2d.default, rand(3, 8, 9), [3, 3], [3, 2], [1, 0], True),
    reduced(aten.avg_pool2d.default, rand(2, 3, 9, 9), [3, 3], [2, 2], [1, 1], True),
    reduced(aten.avg_pool3d.default, rand(1, 2, 6, 5, 4), [2, 2, 3], [2, 2, 2], [1, 0, 1], True),
    reduced(aten.avg_pool3d.default, rand(1, 2, 6, 5, 4), [2, 2, 2]),
    reduced(aten.avg_pool2d.default, rand(5, 3, 9, 8), [3, 2], [1, 2], [1, 0], False, True, 5, dynamic=((0, 0), (0, 2))),
    reduced(aten.avg_pool2d.default, rand(2, 3, 9, 8), [3, 3], [2, 2], [1, 1], False, False, -2),
    reduced(aten.avg_pool2d.default, rand(5, 3, 8, 10), [3, 2], [2, 3], [1, 1], True, True, 1, dynamic=((0, 0),)),
    reduced(aten.avg_pool2d.default, rand(3, 8, 9), [3, 3], [3, 2], [1, 0], True, False, 7),
    reduced(aten.avg_pool3d.default, rand(1, 2, 6, 5, 4), [2, 2, 3], [2, 2, 2], [1, 0, 1], True, False, 3),
    reduced(aten.avg_pool3d.default, rand(2, 6, 5, 4), [2, 2, 2], [1, 2, 2], [1, 1, 0], False, True, 4),
    reduced(aten._adaptive_avg_pool2d.default, rand(5, 3, 8, 6), [4, 2], dynamic=((0, 0),)),
    reduced(aten.adaptive_avg_pool2d.default, rand(2, 3, 8, 6), [1, 1], dynamic=((0, 0), (0, 2), (0, 3))),
    reduced(aten.adaptive_avg_pool2d.default, rand(2, 3, 8, 6).to(memory_format=torch.channels_last), [2, 3]),
    reduced(aten.adaptive_avg_pool3d.default, rand(1, 2, 4, 6, 4), [1, 1, 1]),
    reduced(aten._adaptive_avg_pool3d.default, rand(1, 2, 4, 6, 4), [2, 2, 2]),
]

NORMALIZATION = [
    reduced(aten.layer_norm.default, rand(2, 5, 6), [6], rand(6), rand(6), weights=(1, 2)),
    reduced(aten.layer_norm.default, rand(7, 5, 6) * 100 + 300, [5, 6], dynamic=((0, 0),)),
    reduced(aten.layer_norm.default, rand(7, 5, 6), [6], rand(6), dynamic=((0, 0), (0, 1)), weights=(1,)),
    reduced(aten.native_layer_norm.default, rand(2, 5, 6), [6], rand(6), rand(6), 1e-5, results=(0,), weights=(1, 2)),
    partial(aten.group_norm.default, rand(5, 6, 4, 3), 3, rand(6), rand(6), dynamic=((0, 0),), weights=(1, 2)),
    reduced(aten.group_norm.default, rand(2, 6, 4), 2),
    partial(aten.group_norm.default, rand(2, 6), 2, rand(6), rand(6)),
    # Groups of one element: eager subtracts products with 1 / sqrt(eps), which round the less the smaller the elements are.
    partial(aten.group_norm.default, rand(2, 6) / 512, 6, rand(6), rand(6)),
    partial(aten.group_norm.default, rand(3, 2, 1) / 512, 2, rand(2), rand(2), dynamic=((0, 0),)),
    reduced(aten.group_norm.default, rand(2, 6, 3, 2, 2), 1, rand(6), rand(6), weights=(1, 2)),
    partial(aten.native_group_norm.default, rand(2, 6, 4, 3), rand(6), rand(6), 2, 6, 12, 3, 1e-5, results=(0,), weights=(1, 2)),
    reduced(aten.rms_norm.default, rand(5, 3, 6), [6], rand(6), 1e-6, dynamic=((0, 0),), weights=(1,)),
    reduced(aten.rms_norm.default, rand(2, 3, 6), [3, 6], rand(3, 6), weights=(1,)),
    reduced(aten._softmax.default, rand(5, 3, 4), -1, False, dynamic=((0, 0),)),
    reduced(aten._softmax.default, torch.tensor([[math.nan, 1.0], [-math.inf, -math.inf], [1e4, -1e4]]), 1, False),
    reduced(aten._softmax.default, rand(()), 0, False),
    reduced(aten._log_softmax.default, rand(5, 3, 4) * 20, 1, False, dynamic=((0, 0),)),
    reduced(aten._log_softmax.default, rand(()), 0, False),
]

HIDDEN = torch.tensor([[True, False, True, True], [False, False, False, False], [True, True, True, True]])
BIAS = torch.zeros(3, 4).masked_fill(~HIDDEN, -math.inf)
SDPA = aten.scaled_dot_product_attention.default
Q, K, V = rand(2, 4, 3, 8), rand(2, 4, 4, 8), rand(2, 4, 4, 6)
LONG = (rand(5, 2, 7, 8), rand(5, 2, 7, 8), rand(5, 2, 7, 8))
LONG_DYNAMIC = tuple((tensor, dim) for tensor in range(3) for dim in (0, 2))

ATTENTION = [
    product(SDPA, Q, K, V),
    product(SDPA, Q[0, 0], K[0, 0], V[0, 0]),
    product(SDPA, Q, K, V, scale=0.3),
    product(SDPA, Q, K, V, HIDDEN),
    product(SDPA, Q, K, V, BIAS),
    product(SDPA, Q, K, V, BIAS.index_fill(1, torch.tensor([2]), math.nan)),
    product(SDPA, Q, K, V, rand(2, 1, 3, 4)),
    product(SDPA, Q, K, V, is_causal=True),
    product(SDPA, *LONG, dynamic=LONG_DYNAMIC),
    product(SDPA, *LONG, is_causal=True, dynamic=LONG_DYNAMIC),
    product(SDPA, *LONG, rand(5, 1, 1, 7) > 0, dynamic=(*LONG_DYNAMIC, (3, 0), (3, 3))),
    product(SDPA, Q, K[:, :2], V[:, :2], enable_gqa=True),
]

APART = torch.Generator().manual_seed(1)
"""Of rows written later, which leave the numbers of the others as they were."""


def apart(*shape):
    return torch.randn(*shape, generator=APART)


STRIDED_AND_DILATED = [
    conv(apart(2, 3, 5), apart(3, 4, 3), apart(4), [2], [1], [2], True, [1], 1, dynamic=((0, 0), (0, 2)), weights=(1, 2)),
    conv(apart(2, 4, 5), apart(4, 2, 2), apart(4), [3], [0], [5], True, [4], 2),
    conv(apart(2, 4, 5, 3), apart(4, 3, 3, 2), None, [2, 3], [1, 2], [3, 2], True, [0, 1], 1, dynamic=((0, 0), (0, 2)), weights=(1,)),
    conv(apart(1, 2, 3, 4, 3), apart(2, 3, 2, 2, 2), apart(3), [2, 1, 3], [1, 1, 0], [1, 2, 2], True, [0, 1, 2], 1, weights=(1, 2)),
    product(aten.conv_transpose1d.default, apart(2, 4, 5), apart(4, 2, 3), apart(2), [3], [2], [2], 1, [2], weights=(1,)),
    product(aten.conv_transpose1d.default, apart(2, 3, 1), apart(3, 4, 3), None, [2], [0], [0], 1, [3], dynamic=((0, 0),)),
    product(aten.conv_transpose2d.input, apart(2, 4, 5, 4), apart(4, 2, 2, 3), apart(4), [2, 1], [1, 0], [1, 0], 2, [1, 2]),
    product(aten.conv_transpose2d.input, apart(2, 4, 5, 4), apart(4, 3, 1, 3), apart(3), [2, 2], [0, 1], [3, 1], 1, [4, 1]),
    product(
        aten.conv_transpose2d.input,
        *(apart(2, 4, 5, 4), apart(4, 3, 3, 3), apart(6), [2, 3], [2, 1], [1, 2], 2, [2, 4]),
        dynamic=((0, 0), (0, 2), (0, 3)),
        weights=(1, 2),
    ),
    product(
        aten.conv_transpose3d.input, apart(2, 2, 3, 4, 3), apart(2, 3, 2, 3, 2), apart(3), [2, 2, 2], [1, 0, 1], [1, 0, 0], 1, [2, 2, 3]
    ),
    product(
        aten.conv_transpose3d.input,
        *(apart(2, 4, 3, 4, 3), apart(4, 1, 2, 1, 3), None, [3, 2, 1], [0, 0, 1], [0, 1, 0], 2, [2, 3, 2]),
        dynamic=((0, 0), (0, 2), (0, 3), (0, 4)),
        weights=(1,),
    ),
]
"""Transposed convolutions with both, of which TensorRT-RTX has no layer."""

CASES = PRODUCTS + CONVOLUTIONS + POOLING + NORMALIZATION + ATTENTION + STRIDED_AND_DILATED
