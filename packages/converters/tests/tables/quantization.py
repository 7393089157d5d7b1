"""Rows of quantization, of integers of one byte and of their products."""

from __future__ import annotations

import torch
import torch.ao.quantization.fx._decomposed

from torchkiln_testing import OpCase, OpClass

aten = torch.ops.aten
quantized = torch.ops.quantized_decomposed
GENERATOR = torch.Generator().manual_seed(3)
X = torch.randn(5, 3, 4, generator=GENERATOR) * 3
TIES = torch.arange(-300.0, 300).reshape(5, 120) * 0.25
POINT = torch.tensor(0.7)
RANK8 = X[:4].reshape(2, 2, 1, 3, 2, 1, 2, 1)
EMPTY = torch.empty(0, 3)
SCALES = torch.tensor([0.05, 0.25, 0.7])
SCALE, NO_ZERO = torch.tensor([0.03]), torch.tensor([0])
ZEROS, OFFSETS = torch.zeros(3, dtype=torch.int64), torch.tensor([0, -5, 17], dtype=torch.int32)
DYNAMIC = ((0, 0),)
INT8, UINT8, INT32 = (-128, 127, torch.int8), (0, 255, torch.uint8), (-30000, 30000, torch.int32)
SYMMETRIC, NIBBLE = (-127, 127, torch.int8), (-8, 7, torch.int8)


def whole(*shape, dtype=torch.int8):
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max + 1, shape, generator=GENERATOR).to(dtype)


def exact(op, *args, dynamic=(), weights=(), **kwargs):
    return OpCase(op, args, kwargs, dynamic, weights, OpClass.EXACT)


QUANTIZE = [
    *(
        exact(quantized.quantize_per_tensor.default, source, 0.05, zero, *kind)
        for source in (X, TIES, POINT)
        for zero, kind in ((0, INT8), (0, SYMMETRIC), (3, INT8), (0, NIBBLE), (128, UINT8), (0, INT32))
    ),
    *(exact(quantized.quantize_per_tensor.default, source, 0.037, 0, *INT8) for source in (RANK8, EMPTY)),
    *(exact(quantized.quantize_per_tensor.default, X, 0.037, 0, *kind, dynamic=DYNAMIC) for kind in (INT8, UINT8)),
    *(
        exact(quantized.quantize_per_tensor.tensor, X, scale, zero, *kind, dynamic=DYNAMIC, weights=weights)
        for scale, zero, kind in ((SCALE, NO_ZERO, INT8), (SCALE[0], NO_ZERO[0], INT8), (SCALE, NO_ZERO + 128, UINT8))
        for weights in ((), (1, 2))
    ),
    *(
        exact(quantized.quantize_per_channel.default, X, SCALES, zeros, axis, *kind, weights=weights)
        for zeros, kind in ((ZEROS, INT8), (ZEROS, SYMMETRIC), (OFFSETS, INT8), (OFFSETS + 100, UINT8))
        for axis, weights in ((1, ()), (-2, (1, 2)))
    ),
    exact(quantized.quantize_per_channel.default, X, SCALES, ZEROS, 1, *INT8, dynamic=DYNAMIC, weights=(1, 2)),
    exact(quantized.quantize_per_channel.default, X[0], SCALES, ZEROS, 0, *SYMMETRIC, weights=(0, 1, 2)),
]

DEQUANTIZE = [
    *(
        exact(quantized.dequantize_per_tensor.default, source, 0.037, zero, *kind, out_dtype=out, weights=weights)
        for source, zero, kind in (
            (whole(4, 6), 0, INT8),
            (whole(4, 6), -7, INT8),
            (whole(4, 6, dtype=torch.uint8), 128, UINT8),
            (torch.tensor([[70000, -3, 1 << 20]], dtype=torch.int32), 0, INT32),
            (torch.tensor(-128, dtype=torch.int8), 0, INT8),
        )
        for out in (None, torch.float16, torch.bfloat16)
        for weights in ((), (0,))
    ),
    exact(quantized.dequantize_per_tensor.default, whole(4, 6), 0.037, 0, *INT8, dynamic=DYNAMIC),
    exact(quantized.dequantize_per_tensor.default, whole(4, 6, dtype=torch.uint8), 0.037, 99, *UINT8, dynamic=DYNAMIC),
    *(
        exact(quantized.dequantize_per_tensor.tensor, whole(4, 6), SCALE, zero, *INT8, dynamic=DYNAMIC, weights=weights)
        for zero in (NO_ZERO, NO_ZERO + 5)
        for weights in ((), (1, 2))
    ),
    *(
        exact(quantized.dequantize_per_channel.default, source, SCALES, zeros, axis, *kind, weights=weights, out_dtype=out)
        for source, kind in ((whole(3, 4), INT8), (whole(3, 4, dtype=torch.uint8), UINT8))
        for zeros in (ZEROS, OFFSETS, None)
        for axis, weights in ((0, ()), (-2, (0, 1)))
        for out in (None, torch.float16)
    ),
    exact(quantized.dequantize_per_channel.default, torch.tensor([[1 << 25], [-7], [9]], dtype=torch.int32), SCALES, OFFSETS, 0, *INT32),
    exact(quantized.dequantize_per_channel.default, whole(5, 3, 2), SCALES, ZEROS, 1, *INT8, dynamic=DYNAMIC, weights=(1, 2)),
]

FLOATS = torch.tensor([-100.75, -1.0, -0.5, 0.0, -0.0, 0.25, 2.5, 127.9])
WRAPPING = torch.tensor([0, 127, 128, 255, 256, -1, -128, -129, 1000, (1 << 31) - 1, -(1 << 31)])
CASTS = [
    *(
        exact(aten._to_copy.default, source, dtype=dtype, weights=weights)
        for source, to in (
            (FLOATS, (torch.int8,)),
            (FLOATS.abs() * 1.9, (torch.uint8,)),
            (WRAPPING, (torch.int8, torch.uint8)),
            (WRAPPING * (1 << 32) + WRAPPING, (torch.int8, torch.uint8)),
            (WRAPPING.to(torch.int32), (torch.int8, torch.uint8)),
            (torch.tensor([True, False]), (torch.int8, torch.uint8)),
            (whole(9), (torch.uint8, torch.float32, torch.int32, torch.bool)),
            (whole(9, dtype=torch.uint8), (torch.int8, torch.float16, torch.int64, torch.bool)),
            (torch.tensor(-5, dtype=torch.int8), (torch.float32, torch.uint8)),
        )
        for dtype in to
        for weights in ((), (0,))
    ),
    exact(aten._to_copy.default, X.abs(), dtype=torch.uint8, dynamic=DYNAMIC),
    exact(aten._to_copy.default, X, dtype=torch.int8, dynamic=DYNAMIC),
]

VIEWS = [
    exact(aten.view.default, whole(4, 6), [2, 12]),
    exact(aten.view.default, whole(4, 6), [-1, 3, 2], dynamic=DYNAMIC),
    exact(aten.permute.default, whole(4, 6), [1, 0], dynamic=DYNAMIC),
    exact(aten.t.default, whole(4, 6)),
    exact(aten.transpose.int, whole(4, 6), 0, 1),
    exact(aten.unsqueeze.default, whole(4, 6), 0),
    exact(aten.squeeze.dim, whole(4, 1), 1),
    exact(aten.squeeze.default, whole(4, 1)),
    exact(aten.clone.default, whole(4, 6)),
]

# PyTorch on a GPU wants more than 16 rows, and the other sizes in multiples of 8.
PRODUCTS = [
    *(
        exact(aten._int_mm.default, whole(*left), whole(*right), weights=weights)
        for left, right in (((17, 64), (64, 8)), ((18, 2504), (2504, 16)), ((20, 1024), (1024, 8)))
        for weights in ((), (1,))
    ),
    exact(aten._int_mm.default, whole(40, 64), whole(8, 64).t(), weights=(1,)),
    exact(aten._int_mm.default, torch.full((24, 4096), -128, dtype=torch.int8), torch.full((4096, 8), -128, dtype=torch.int8)),
]


def fp8(*shape):
    return torch.randn(*shape, generator=GENERATOR).to(torch.float8_e4m3fn)


def scaled(left, right, *scales, dynamic=(), weights=(), **kwargs):
    return OpCase(aten._scaled_mm.default, (left, right, *scales), kwargs, dynamic, weights, OpClass.MATMUL)


ONE, TWO = torch.tensor(0.75), torch.tensor(1.5)
ROWS_ON_THE_CPU = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 15)
"""Whether PyTorch scales rows and columns there, which 2.11 does not."""
SCALED = [
    scaled(fp8(32, 64), fp8(48, 64).t(), ONE, TWO, out_dtype=torch.bfloat16),
    scaled(fp8(32, 64), fp8(48, 64).t(), ONE, TWO, out_dtype=torch.bfloat16, weights=(1, 2, 3)),
    *(
        scaled(fp8(32, 64), fp8(48, 64).t(), torch.rand(32, 1) + 0.1, torch.rand(1, 48) + 0.1, out_dtype=torch.bfloat16)
        for _ in range(ROWS_ON_THE_CPU)
    ),
    scaled(fp8(32, 64), fp8(48, 64).t(), ONE, TWO, bias=torch.randn(48).bfloat16(), out_dtype=torch.bfloat16),
]

CASES = [*QUANTIZE, *DEQUANTIZE, *CASTS, *VIEWS, *PRODUCTS, *SCALED]
