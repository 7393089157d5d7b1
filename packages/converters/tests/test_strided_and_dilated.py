"""Transposed convolutions with a stride and a dilation: what is written for them, and where inf and NaN of the input go."""

from __future__ import annotations

import math

import pytest
import torch

from torchkiln_core.layers import Deconvolution, Slice
from torchkiln_testing import OpCase, OpClass, check_op, check_op_in

aten = torch.ops.aten


def rand(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def transposed(image, kernel, stride, dilation, **kwargs):
    none = [0] * len(stride)
    return OpCase(aten.convolution.default, (image, kernel, None, stride, none, dilation, True, none, 1), op_class=OpClass.MATMUL, **kwargs)


@pytest.mark.parametrize(
    ("taps", "stride", "dilation", "zeros"),
    [
        ((3, 3), [2, 2], [1, 1], False),
        ((3, 3), [1, 1], [2, 2], False),
        ((1, 1), [2, 2], [2, 2], False),
        ((3, 1), [2, 2], [1, 2], False),
        ((3, 1), [1, 2], [2, 1], True),
        ((3, 3), [2, 2], [2, 2], True),
    ],
)
def test_zeros_are_written_only_where_a_layer_would_have_both(converter, taps, stride, dilation, zeros):
    network = check_op(transposed(rand(2, 3, 4, 5), rand(3, 2, *taps), stride, dilation, weights=(1,)), converter)
    [layer] = [step.layer for step in network.steps if isinstance(step.layer, Deconvolution)]
    assert max(layer.stride) == 1 or max(layer.dilation) == 1
    assert any(isinstance(step.layer, Slice) for step in network.steps) is zeros


def with_specials(dtype):
    """Far apart, so that no two of them meet in one sum."""
    image = torch.ones(2, 2, 7, 6, dtype=dtype)
    for example, row, special in ((0, 0, math.inf), (0, 5, math.nan), (1, 3, -math.inf)):
        image[example, 0, row, row] = special
    return transposed(image, rand(2, 3, 2, 2).abs().to(dtype), [2, 3], [3, 2], dynamic=((0, 0),), weights=(1,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_inf_and_nan_stay_where_eager_has_them(converter, builder, dtype):
    case = with_specials(dtype)
    (expected,) = case.eager()
    assert [int(found.sum()) for found in (expected.isposinf(), expected.isnan(), expected.isneginf())] == [12, 12, 12]
    check_op(case, converter, builder)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_inf_and_nan_stay_where_eager_has_them_on_a_gpu(converter, engine_on_gpu, dtype):
    check_op_in(with_specials(dtype), converter, engine_on_gpu, "cuda")
