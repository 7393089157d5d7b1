"""Every layer: its semantics, the dtypes and shapes it infers, its typing, and its way through a record."""

from __future__ import annotations

import json
import math

import core_layer_rows
import core_layer_rows_attention
import core_layer_rows_pointwise
import core_layer_rows_resampling
import pytest
import torch
from core_programs import shape_at
from hypothesis import given, settings
from hypothesis import strategies as st

from torchkiln_core import InternalError, Interpreter, Layer, Network, from_record, layers, network_key, to_record
from torchkiln_core.layers import (
    NMS,
    Activation,
    ActivationKind,
    Constant,
    Elementwise,
    ElementwiseOp,
    IfConditional,
    Loop,
    NonZero,
    Pooling,
    PoolingKind,
    Reduce,
    ReduceOp,
    Slice,
    Unary,
    UnaryOp,
)
from torchkiln_testing import assert_same

CASES = [*core_layer_rows_pointwise.ROWS, *core_layer_rows.ROWS, *core_layer_rows_resampling.ROWS, *core_layer_rows_attention.ROWS]
NAN, INF = math.nan, math.inf
SIZES = [{"n": 5, "m": 4}, {"n": 3, "m": 7}]
KINDS = {kind for name in layers.__all__ if isinstance(kind := getattr(layers, name), type) and issubclass(kind, Layer)}


def _tuple(result):
    return result if isinstance(result, tuple) else (result,)


def test_every_layer_has_a_row():
    # A constant has no operands; layers with bodies and those whose sizes depend on data have tests of their own.
    without = {Constant, IfConditional, Loop, NonZero, NMS}
    assert {type(case.layer) for case in CASES} | without == KINDS
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_semantics_and_inference(case):
    symbols, symbolic = case.symbolic()
    assert symbols.env.guards == []
    assert symbols.env.replacements == {}
    for sizes in SIZES:
        expected = _tuple(case.reference(sizes))
        got = case.run(symbolic, sizes)
        assert_same(expected, got, case.op_class)
        assert_same(expected, case.run(case.static(sizes), sizes), case.op_class)
        for (_, value), tensor in zip(symbolic.outputs, got, strict=True):
            assert (value.dtype, shape_at(value.shape, symbols.values(sizes))) == (tensor.dtype, tuple(tensor.shape))
        for (_, value), tensor in zip(case.static(sizes).outputs, got, strict=True):
            assert (value.dtype, value.shape) == (tensor.dtype, tuple(tensor.shape))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_record_reads_back(case):
    _, net = case.symbolic()
    record, tensors = to_record(net)
    again = from_record(json.loads(json.dumps(record)), tensors)
    assert str(again) == str(net)
    assert to_record(again)[0] == record
    assert again.steps[-1].layer == net.steps[-1].layer
    assert [type(getattr(again.steps[-1].layer, name)) for name in record["steps"][-1]["attributes"]] == [
        type(getattr(net.steps[-1].layer, name)) for name in record["steps"][-1]["attributes"]
    ]
    assert network_key(again, {}) == network_key(net, {})
    assert_same(case.run(net, SIZES[1]), case.run(again, SIZES[1]))


def test_a_constant_is_held_by_reference():
    weight = torch.nn.Parameter(torch.randn(2, 3).to(torch.bfloat16))
    net = Network()
    with net.scope("linear", "m.py:1"):
        value = net.constant(weight, weight="layer.weight")
    net.output("y", value)
    assert value.constant is weight
    assert (value.dtype, value.shape, net.steps[0].weight) == (torch.bfloat16, (2, 3), "layer.weight")
    record, tensors = to_record(net)
    assert tensors["constant_0"] is weight
    again = from_record(json.loads(json.dumps(record)), tensors)
    assert again.steps[0].layer.tensor is weight
    assert again.steps[0].weight == "layer.weight"
    with torch.no_grad():
        weight.fill_(3)
    assert_same((weight.detach(),), Interpreter(net)())


@pytest.mark.parametrize("op", [UnaryOp.ROUND, UnaryOp.ISINF, UnaryOp.ISNAN, UnaryOp.SIGN, UnaryOp.FLOOR], ids=lambda op: op.value)
def test_unary_edges(op):
    inf, nan = math.inf, math.nan
    expected = {
        UnaryOp.ROUND: [-2.0, -0.0, 0.0, 2.0, 2.0, inf, nan],
        UnaryOp.ISINF: [False, False, False, False, False, True, False],
        UnaryOp.ISNAN: [False, False, False, False, False, False, True],
        UnaryOp.SIGN: [-1.0, -1.0, 1.0, 1.0, 1.0, 1.0, nan],
        UnaryOp.FLOOR: [-2.0, -1.0, 0.0, 1.0, 2.0, inf, nan],
    }[op]
    x = torch.tensor([-1.5, -0.5, 0.5, 1.5, 2.5, inf, nan])
    assert_same(torch.tensor(expected), Unary(op).run(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("layer", "operands", "expected"),
    [
        (Elementwise(ElementwiseOp.MAX), ([NAN, 1.0, NAN, 2.0], [3.0, NAN, NAN, -INF]), [3.0, 1.0, NAN, 2.0]),
        (Elementwise(ElementwiseOp.MIN), ([NAN, 1.0, NAN, 2.0], [3.0, NAN, NAN, -INF]), [3.0, 1.0, NAN, -INF]),
        (Activation(ActivationKind.CLIP, -0.5, 2.0), ([NAN, -INF, INF, 1.0],), [-0.5, -0.5, 2.0, 1.0]),
        (Activation(ActivationKind.SOFTPLUS, 0.5, 2.0), ([NAN, -INF, INF, 100.0],), [NAN, 0.0, INF, 100.0]),
        (Reduce(ReduceOp.MAX, (1,), False), ([[NAN, -INF, 2.0], [NAN, NAN, NAN]],), [2.0, -INF]),
        (Reduce(ReduceOp.MIN, (1,), False), ([[NAN, INF, 2.0], [NAN, NAN, NAN]],), [2.0, INF]),
        (Pooling(PoolingKind.MAX, (1, 2), (1, 2), (0, 0), (0, 0)), ([[[[NAN, 1.0, NAN, NAN]]]],), [[[[1.0, -INF]]]]),
        (Pooling(PoolingKind.AVERAGE, (1, 2), (1, 2), (0, 0), (0, 0)), ([[[[NAN, 1.0, 3.0, INF]]]],), [[[[NAN, INF]]]]),
    ],
    ids=lambda value: value.op.value if hasattr(value, "op") else "",
)
def test_nan_and_infinities_do_what_tensorrt_does(layer, operands, expected, dtype):
    result = layer.run(*(torch.tensor(operand, dtype=dtype) for operand in operands))
    assert_same(torch.tensor(expected, dtype=dtype), result)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "layer",
    [
        Activation(ActivationKind.SELU, 1.6732632423543772, 1.0507009873554805),
        Activation(ActivationKind.SOFTPLUS, 1.0, 1.0),
        Activation(ActivationKind.HARD_SIGMOID, 1 / 6, 0.5),
        Activation(ActivationKind.SCALED_TANH, 1.7, 0.6),
        Pooling(PoolingKind.AVERAGE, (3, 3), (2, 2), (1, 1), (1, 1)),
        Pooling(PoolingKind.AVERAGE, (2, 2, 2), (1, 1, 1), (1, 0, 1), (1, 0, 1)),
    ],
    ids=lambda layer: layer.op.value,
)
def test_half_precisions_are_rounded_once(layer, dtype):
    spatial = len(layer.window) if isinstance(layer, Pooling) else 2
    x = torch.randn(2, 3, *[6] * spatial, generator=torch.Generator().manual_seed(3)).to(dtype)
    assert torch.equal(layer.run(x), layer.run(x.float()).to(dtype))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 7), st.data())
def test_a_strict_slice_is_pythons(extent, data):
    x = torch.arange(extent * 2).reshape(2, extent)
    step = data.draw(st.sampled_from([-3, -2, -1, 1, 2, 3]))
    start = data.draw(st.integers(0, extent - 1))
    picked = list(range(start, extent, step) if step > 0 else range(start, -1, step))
    count = data.draw(st.integers(0, len(picked)))
    result = Slice((0, start), (2, count), (1, step)).run(x)
    assert result.tolist() == [[row[index] for index in picked[:count]] for row in x.tolist()]
    with pytest.raises(InternalError, match="leave dimension 1"):
        Slice((0, start), (2, len(picked) + 1), (1, step)).run(x)
