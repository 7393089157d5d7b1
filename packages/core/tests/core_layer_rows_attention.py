"""Rows of the layers of transformers, of quantization, and of others with a page of their own."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from core_layer_cases import Case, Sizes, T

from torchkiln_core.layers import (
    Attention,
    CausalMask,
    Dequantize,
    Einsum,
    KVCacheUpdate,
    OneHot,
    ParametricRelu,
    Quantize,
    RandomNormal,
    RandomUniform,
    RotaryEmbedding,
)
from torchkiln_testing import OpClass

F16, BF16, F32, I8, I32, I64, BOOL = torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.int32, torch.int64, torch.bool
FP8 = torch.float8_e4m3fn
REDUCTION, MATMUL, POINTWISE = OpClass.REDUCTION, OpClass.MATMUL, OpClass.POINTWISE
QUERY, KEY = T(("n", 4, "m", 8)), T(("n", 4, 6, 8))


def _attention(query, key, value, mask=None):
    """Attention with torch's own scale taken back."""
    return F.scaled_dot_product_attention(query * query.shape[-1] ** 0.5, key, value, mask)


def _lower_right(query, key, value):
    rows, columns = query.shape[2], key.shape[2]
    mask = torch.arange(columns) <= torch.arange(rows).unsqueeze(1) + columns - rows
    return _attention(query, key, value, mask)


def _rotated(x, cos, sin):
    """Rotation by complex numbers, of neighbours."""
    numbers = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(numbers * torch.complex(cos, sin).unsqueeze(1)).flatten(-2)


def _rotated_halves(x, cos, sin):
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), -1)
    return x * torch.cat((cos, cos), -1).unsqueeze(1) + turned * torch.cat((sin, sin), -1).unsqueeze(1)


def _written(cache, update, places):
    result = cache.clone()
    for item, place in enumerate(places.tolist()):
        result[item, :, place : place + update.shape[2]] = update[item]
    return result


ATTENTION = [
    Case("attention", Attention(), (QUERY, KEY, KEY), _attention, MATMUL),
    Case(
        "attention-groups",
        Attention(),
        (T((2, 6, "n", 8)), T((2, 2, "m", 8)), T((2, 2, "m", 8))),
        lambda q, k, v: _attention(q, k[:, [0, 0, 0, 1, 1, 1]], v[:, [0, 0, 0, 1, 1, 1]]),
        MATMUL,
    ),
    Case(
        "attention-causal",
        Attention(CausalMask.UPPER_LEFT),
        (QUERY, KEY, KEY),
        lambda q, k, v: _attention(q, k, v, torch.ones(q.shape[2], 6).tril().bool()),
        MATMUL,
    ),
    Case(
        "attention-causal-end",
        Attention(CausalMask.LOWER_RIGHT),
        (T((1, 2, "n", 4)), T((1, 2, 8, 4)), T((1, 2, 8, 4))),
        _lower_right,
        MATMUL,
    ),
    Case("attention-added-mask", Attention(), (QUERY, KEY, KEY, T((1, 4, "m", 6))), _attention, MATMUL),
    Case(
        "attention-bool-mask",
        Attention(),
        (T((2, 4, 3, 16), F16), T((2, 4, 5, 16), F16), T((2, 4, 5, 16), F16), T((1, 1, 3, 5), BOOL)),
        lambda q, k, v, mask: _attention(q.float(), k.float(), v.float(), mask).half(),
        MATMUL,
    ),
    Case("rotary-neighbours", RotaryEmbedding(True), (T(("n", 2, "m", 8)), T(("n", "m", 4)), T(("n", "m", 4))), _rotated, POINTWISE),
    Case("rotary-halves", RotaryEmbedding(False), (T(("n", 2, "m", 8)), T(("n", "m", 4)), T(("n", "m", 4))), _rotated_halves, POINTWISE),
    Case(
        "rotary-some-features",
        RotaryEmbedding(False, 4),
        (T(("n", 2, "m", 8)), T(("n", "m", 2)), T(("n", "m", 2))),
        lambda x, cos, sin: torch.cat((_rotated_halves(x[..., :4], cos, sin), x[..., 4:]), -1),
        POINTWISE,
    ),
    Case(
        "rotary-positions",
        RotaryEmbedding(True),
        (T(("n", 2, "m", 4)), T((9, 2)), T((9, 2)), T(("n", "m"), I64, 0, 9)),
        lambda x, cos, sin, at: _rotated(x, cos[at], sin[at]),
        POINTWISE,
    ),
    Case("cache-update", KVCacheUpdate(), (T(("n", 2, 9, 3), BF16), T(("n", 2, 2, 3), BF16), T(("n",), I32, 0, 8)), _written),
]
QUANTIZATION = [
    Case(
        "quantize",
        Quantize(I8),
        (T(("n", "m"), low=-9), T((), low=0.01, high=0.02)),
        lambda x, s: (torch.fake_quantize_per_tensor_affine(x, s.item(), 0, -128, 127) / s).round().to(I8),
    ),
    Case(
        "quantize-axis",
        Quantize(I8, axis=1),
        (T((2, 3, "n")), T((3,), low=0.01, high=0.5)),
        lambda x, s: (x / s.reshape(3, 1)).round().clamp(-128, 127).to(I8),
    ),
    Case(
        "quantize-blocks",
        Quantize(I8, block=(2, 1)),
        (T((4, 3), BF16), T((2, 3), low=0.1, high=0.5)),
        lambda x, s: torch.stack([(x[row] / s[row // 2]).round().to(I8) for row in range(4)]),
    ),
    Case("dequantize", Dequantize(F16), (T(("n", "m"), I8, -128, 127), T((), F16)), lambda x, s: x * s),
    Case(
        "dequantize-blocks",
        Dequantize(F32, block=(1, 2)),
        (T((3, 4), I8, -9, 9), T((3, 2))),
        lambda x, s: x * s.repeat_interleave(2, 1),
    ),
    Case("dequantize-axis", Dequantize(BF16, axis=0), (T((3, "n"), I8, -9, 9), T((3,), BF16)), lambda x, s: x * s.reshape(3, 1)),
]
OTHERS = [
    Case("einsum", Einsum("bij,bkj->bik"), (T(("n", 2, "m")), T(("n", 3, "m"))), lambda a, b: a @ b.mT, MATMUL),
    Case("einsum-broadcast", Einsum("bij,bjk->bik"), (T((1, 2, "n")), T(("m", "n", 3))), lambda a, b: a @ b, MATMUL),
    Case("einsum-three", Einsum("i,j,k->kji"), (T(("n",)), T(("m",)), T((2,))), lambda a, b, c: c[:, None, None] * b[:, None] * a, MATMUL),
    Case("einsum-sum", Einsum("ij->"), (T(("n", "m")),), lambda a: a.sum(), REDUCTION),
    Case("einsum-transpose", Einsum("ij->ji"), (T(("n", "m"), BF16),), lambda a: a.t()),
    Case("one-hot", OneHot(5, 2), (T(("n", 3), I64, 0, 5), T((2,))), lambda i, v: v[F.one_hot(i, 5)]),
    Case("one-hot-first", OneHot(4, 0), (T(("n",), I32, 0, 4), T((2,), I64, 0, 9)), lambda i, v: v[F.one_hot(i.long(), 4)].t()),
    Case("one-hot-scalar", OneHot(3, 0), (T((), I32, 0, 3), T((2,), BOOL)), lambda i, v: v[F.one_hot(i.long(), 3)]),
    Case("parametric-relu", ParametricRelu(), (T(("n", 3, "m")), T((1, 3, 1))), lambda x, s: F.prelu(x, s.flatten())),
    Case("parametric-relu-negative", ParametricRelu(), (T(("n",), F16), T((1,), F16, -2, -1)), lambda x, s: torch.where(x < 0, x * s, x)),
    Case(
        "random-uniform",
        RandomUniform(2.0, 2.0, F16),
        (Sizes(("n", "2*m")),),
        lambda n, m: torch.full((n, 2 * m), 2.0, dtype=F16),
        sizes=("n", "m"),
    ),
    Case("random-normal", RandomNormal(-1.0, 0.0, F32), (Sizes(("n", 0, 3)),), lambda n: torch.empty(n, 0, 3), sizes=("n",)),
]
ROWS = [*ATTENTION, *QUANTIZATION, *OTHERS]
