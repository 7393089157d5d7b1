"""How quantized values are written: by the layers that TensorRT finds kernels for, and never as what it does not take."""

from __future__ import annotations

import pytest
import torch
import torch.ao.quantization.fx._decomposed

from torchkiln_core.layers import Cast, Constant, Dequantize, Quantize
from torchkiln_testing import OpCase, OpClass, check_op, trace_call

aten = torch.ops.aten
quantized = torch.ops.quantized_decomposed
X, SMALL = torch.ones(3, 4), torch.ones(3, 4, dtype=torch.int8)
SCALES, ZEROS = torch.ones(3), torch.zeros(3, dtype=torch.int64)
FP8 = torch.ones(16, 16).to(torch.float8_e4m3fn)
INT8 = (-128, 127, torch.int8)
ONE = torch.tensor(1.0)


def _kinds(case, converter):
    traced = trace_call(case)
    return [type(step.layer) for step in converter.convert(traced.segment, traced.program).steps]


@pytest.mark.parametrize(
    "case",
    [
        OpCase(quantized.quantize_per_tensor.default, (X, 0.1, 0, *INT8)),
        OpCase(quantized.quantize_per_channel.default, (X, SCALES, ZEROS, 0, *INT8), weights=(1, 2)),
    ],
    ids=str,
)
def test_int8_without_a_zero_point_is_quantized_by_its_layer(case, converter):
    kinds = _kinds(case, converter)
    assert kinds.count(Quantize) == 1
    assert Cast not in kinds


@pytest.mark.parametrize(
    "case",
    [
        OpCase(quantized.dequantize_per_tensor.default, (SMALL, 0.1, 0, *INT8)),
        OpCase(quantized.dequantize_per_channel.default, (SMALL, SCALES, ZEROS, 0, *INT8), weights=(0, 1, 2)),
        OpCase(quantized.dequantize_per_channel.default, (SMALL, SCALES, None, 0, *INT8), weights=(0, 1)),
    ],
    ids=str,
)
def test_int8_without_a_zero_point_is_dequantized_by_its_layer(case, converter):
    assert [kind for kind in _kinds(case, converter) if kind is not Constant] == [Dequantize]


def test_a_constant_of_int8_is_read_by_a_dequantize_layer_only(converter):
    case = OpCase(aten._int_mm.default, (SMALL, SMALL.t().contiguous()), weights=(1,))
    traced = trace_call(case)
    network = converter.convert(traced.segment, traced.program)
    held = {step.outputs[0] for step in network.steps if isinstance(step.layer, Constant) and step.outputs[0].dtype is torch.int8}
    readers = [type(step.layer) for step in network.steps if not held.isdisjoint(step.inputs)]
    assert readers == [Dequantize]


def _whole(*shape):
    return torch.randint(-128, 128, shape, generator=torch.Generator().manual_seed(5)).to(torch.int8)


PRODUCTS = [
    *(
        OpCase(aten._int_mm.default, (_whole(*left), _whole(*right)), weights=weights, op_class=OpClass.EXACT)
        for left, right in (((3, 4), (4, 5)), ((2, 2500), (2500, 3)), ((1, 1024), (1024, 1)), ((2, 1), (1, 3)))
        for weights in ((), (0,), (1,))
    ),
    OpCase(aten._int_mm.default, (_whole(17, 64), _whole(8, 64).t()), dynamic=((0, 0),), weights=(1,), op_class=OpClass.EXACT),
    OpCase(aten._int_mm.default, (_whole(7, 2500), _whole(2500, 9)), dynamic=((0, 0), (1, 1)), op_class=OpClass.EXACT),
]


@pytest.mark.parametrize("case", PRODUCTS, ids=str)
def test_products_of_any_sizes(case, converter, builder):
    """PyTorch computes these on a CPU only."""
    check_op(case, converter, builder)


REFUSED = [
    (OpCase(quantized.quantize_per_tensor.default, (X, 0.1, 0, -32768, 32767, torch.int16)), "dtype"),
    (OpCase(quantized.quantize_per_tensor.default, (X, 0.1, 0, -(1 << 31), (1 << 31) - 1, torch.int32)), "requires"),
    (OpCase(quantized.quantize_per_tensor.default, (X, -0.1, 0, *INT8)), "requires"),
    (OpCase(quantized.quantize_per_tensor.default, (X, 1e-60, 0, *INT8)), "requires"),
    (OpCase(quantized.quantize_per_channel.default, (X, SCALES.double(), ZEROS, 0, *INT8)), "dtype"),
    (OpCase(quantized.dequantize_per_tensor.default, (SMALL, 0.1, 0, *INT8), {"out_dtype": torch.float64}), "dtype"),
    (OpCase(aten._to_copy.default, (X,), {"dtype": torch.int16}), "dtype"),
    (OpCase(aten._to_copy.default, (X,), {"dtype": torch.float8_e4m3fn}), "dtype"),
    (OpCase(aten._int_mm.default, (SMALL, SMALL.t()), dynamic=((0, 1), (1, 0))), "static"),
    (OpCase(aten._scaled_mm.default, (FP8, FP8.t(), ONE, ONE)), "dtype"),
    (OpCase(aten._scaled_mm.default, (FP8.to(torch.float8_e5m2), FP8.t(), ONE, ONE), {"out_dtype": torch.bfloat16}), "dtype"),
]


@pytest.mark.parametrize(("case", "rule"), REFUSED, ids=str)
def test_refusals(case, rule, registry):
    rejection = registry.reject(trace_call(case).call)
    assert (None if rejection is None else rejection.rule) == rule
