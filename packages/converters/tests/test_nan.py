"""NaN: no converter leaves it to a layer whose treatment of it depends on the dtype, and integers pay nothing for it."""

from __future__ import annotations

import pytest
import torch

from torchkiln_core.layers import Elementwise, ElementwiseOp, Reduce, ReduceOp, TopK, Unary, UnaryOp
from torchkiln_testing import OpCase, trace_call

aten = torch.ops.aten
ADDS_ANOTHER_NAN = {aten.softplus.default, aten.mish.default}
"""Their maximum is added to a term that is NaN where the operand is."""
I64 = torch.tensor([[5, -2, 7], [2**33, 1, 1]])
X = torch.tensor([[5.0, -2.0, 7.0], [3.0, 1.0, 1.0]])


def _network(case, converter):
    traced = trace_call(case)
    return converter.convert(traced.segment, traced.program)


def _is_extreme(step):
    return isinstance(step.layer, Elementwise) and step.layer.op in (ElementwiseOp.MAX, ElementwiseOp.MIN)


@pytest.mark.filterwarnings("ignore:var")
def test_no_elementwise_extreme_chooses_between_nan_and_a_number(cases, converter):
    first = {}
    for case in cases:
        first.setdefault((case.op, len(case.args)), case)
    for (op, _), case in first.items():
        found = [step for step in _network(case, converter).steps if _is_extreme(step) and step.outputs[0].dtype.is_floating_point]
        # No integer stands for NaN, and quantization gives integers.
        assert not found or op in ADDS_ANOTHER_NAN or op.namespace == "quantized_decomposed", case


INTEGER_CALLS = [
    (OpCase(aten.maximum.default, (I64, I64)), 1),
    (OpCase(aten.clamp.default, (I64, 0, 4)), 2),
    (OpCase(aten.amax.default, (I64, [1])), 1),
    (OpCase(aten.max.dim, (I64, 1), results=(0,)), 1),
    (OpCase(aten.topk.default, (I64, 2), results=(0,)), 1),
    (OpCase(aten.sign.default, (I64,)), 1),
]


@pytest.mark.parametrize(("case", "layers"), INTEGER_CALLS, ids=str)
def test_integers_are_not_searched_for_nan(case, layers, converter):
    kinds = (Elementwise, Reduce, TopK, Unary)
    found = [step.layer for step in _network(case, converter).steps if isinstance(step.layer, kinds)]
    assert len(found) == layers
    assert not any(isinstance(layer, Unary) and layer.op is UnaryOp.ISNAN for layer in found)


def test_a_reduction_of_floats_looks_for_nan(converter):
    steps = _network(OpCase(aten.amin.default, (X, [1])), converter).steps
    assert [step.layer.op for step in steps if isinstance(step.layer, Reduce)] == [ReduceOp.MIN, ReduceOp.MAX]
