"""Refusals that every converter's ``Support`` implies, and those of particular converters."""

from __future__ import annotations

import dataclasses
import math

import pytest
import sympy
import torch
import torch.ao.quantization.fx._decomposed

from torchkiln_converters import Equals
from torchkiln_core import OpCall
from torchkiln_testing import OpCase, SizeOf, trace_call

aten = torch.ops.aten


UNTRACEABLE = frozenset(
    {
        aten._scaled_mm.default,
        torch.ops.quantized_decomposed.quantize_per_tensor.default,
        torch.ops.quantized_decomposed.quantize_per_tensor.tensor,
        torch.ops.quantized_decomposed.quantize_per_channel.default,
    }
)
"""Operators that refuse a double themselves."""


def _refusal(registry, case):
    return registry.reject(trace_call(case).call)


def _first_rows(cases):
    rows = {}
    for case in cases:
        rows.setdefault(case.op, case)
    return rows.values()


def test_double_precision_is_refused(registry, cases):
    for case in _first_rows(cases):
        tensors = case.tensors()
        # PyTorch itself infers nothing from a double where these want a float, so that no such call is ever captured.
        if not any(tensor.is_floating_point() for tensor in tensors) or case.op in UNTRACEABLE:
            continue
        rejection = _refusal(registry, case.with_floats(torch.float64))
        assert rejection is not None, case
        assert rejection.rule == "dtype"


def test_complex_numbers_are_refused(registry):
    for op in (aten.add.Tensor, aten.mul.Tensor):
        values = torch.ones(2, dtype=torch.complex64)
        assert _refusal(registry, OpCase(op, (values, values))).rule == "dtype"


def test_a_size_that_only_the_result_has_is_refused(registry):
    call = trace_call(OpCase(aten.slice.Tensor, (torch.ones(4), 0, 0, 2))).call
    assert registry.reject(call) is None
    # Older releases of torch give a slice up to a size that depends on data such a result.
    call.node.meta["unbacked_bindings"] = {sympy.Symbol("u0"): ()}
    rejection = registry.reject(call)
    assert rejection.rule == "static"
    assert "u0" in rejection.message


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("stride", "dilation"), [([2, 2], [2, 2]), ([2, 1], [1, 2]), ([1, 1], [2, 2])])
def test_a_convolution_with_stride_and_dilation_is_taken(registry, stride, dilation, transposed):
    operands = (torch.ones(1, 2, 5, 5), torch.ones(2, 2, 3, 3), None)
    assert _refusal(registry, OpCase(aten.convolution.default, (*operands, stride, [0, 0], dilation, transposed, [0, 0], 1))) is None
    if transposed:
        assert _refusal(registry, OpCase(aten.conv_transpose2d.input, (*operands, stride, [0, 0], [0, 0], 1, dilation))) is None


@pytest.mark.parametrize(
    ("channels", "groups", "has_bias", "taken"),
    [((8, 16), 1, False, True), ((16, 8), 2, False, True), ((8, 16), 2, False, False), ((64, 3), 1, False, False), ((3, 4), 1, True, True)],
)
def test_a_transposed_convolution_in_bfloat16_has_full_channels_or_a_bias(registry, channels, groups, has_bias, taken):
    image, kernel = (torch.ones(shape, dtype=torch.bfloat16) for shape in ((1, channels[0], 4, 4), (*channels, 2, 2)))
    bias = torch.ones(channels[1] * groups, dtype=torch.bfloat16) if has_bias else None
    whole = OpCase(aten.convolution.default, (image, kernel, bias, [2, 2], [0, 0], [1, 1], True, [0, 0], groups))
    for case in (whole, OpCase(aten.conv_transpose2d.input, (image, kernel, bias, [2, 2], [0, 0], [0, 0], groups))):
        refusal = _refusal(registry, case)
        assert (refusal is None) is taken
        assert refusal is None or "8, 16, ... channels" in refusal.message
        assert _refusal(registry, case.with_floats(torch.float16)) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_transposed_convolution_of_three_dimensions_is_refused_in_bfloat16(registry, dtype):
    image, kernel = torch.ones(1, 2, 3, 3, 3, dtype=dtype), torch.ones(2, 2, 2, 2, 2, dtype=dtype)
    transposed = OpCase(aten.conv_transpose3d.input, (image, kernel))
    ones, zeros = [1] * 3, [0] * 3
    whole, plain = (OpCase(aten.convolution.default, (image, kernel, None, ones, zeros, ones, kind, zeros, 1)) for kind in (True, False))
    refused = dtype is torch.bfloat16
    assert [_refusal(registry, case) is not None for case in (transposed, whole, plain)] == [refused, refused, False]
    assert _refusal(registry, OpCase(aten.conv_transpose2d.input, (image[:, :, 0], kernel[:, :, 0], kernel[0, :, 0, 0, 0]))) is None


def test_dtypes_outside_support_are_refused(registry, cases):
    """Every tensor argument in turn gets a dtype that its ``Support`` lacks."""
    for case in _first_rows(cases):
        call = trace_call(case).call
        support = registry[case.op].support
        for name, argument in call.arguments.items():
            if not isinstance(argument, torch.fx.Node) or not isinstance(argument.meta["val"], torch.Tensor):
                continue
            assert torch.int16 not in support.arguments.get(name, support.dtypes)
            before = argument.meta["val"]
            with before.fake_mode:
                argument.meta["val"] = torch.empty_strided(before.shape, before.stride(), dtype=torch.int16)
            rejection = registry.reject(call)
            assert rejection is not None, (case, name)
            assert rejection.rule == "dtype"
            argument.meta["val"] = before


def test_ranks_outside_support_are_refused(registry, cases):
    for case in _first_rows(cases):
        call = trace_call(case).call
        node = next((item for item in call.arguments.values() if isinstance(item, torch.fx.Node)), None)
        if node is None:
            continue
        ranks = registry[case.op].support.ranks
        for rank in {ranks.stop, ranks.start - 1} - {-1}:
            before = node.meta["val"]
            with before.fake_mode:
                node.meta["val"] = torch.empty((1,) * rank, dtype=before.dtype)
            rejection = registry.reject(call)
            assert rejection is not None, (case, rank)
            assert rejection.rule == "rank"
            node.meta["val"] = before


def test_other_values_than_those_of_equals_are_refused(registry, cases):
    seen = 0
    for case in _first_rows(cases):
        for rule in registry[case.op].support.rules:
            if not isinstance(rule, Equals):
                continue
            call = trace_call(case).call
            other = 3 if rule.value is None else not rule.value if isinstance(rule.value, bool) else rule.value + 1
            changed = dataclasses.replace(call, arguments={**call.arguments, rule.argument: other})
            rejection = registry.reject(changed)
            assert rejection is not None, (case, rule)
            assert rejection.rule == "equals"
            seen += 1
    assert seen >= 4


X = torch.ones(5, 3, 4)
HEADS = torch.ones(2, 6, 3, 8)
IMAGE = torch.ones(5, 3, 8, 6)
REFUSED = [
    (OpCase(aten.lgamma.default, (X,)), "no-converter"),
    (OpCase(aten.add.Tensor, (X > 0, X > 0), {"alpha": False}), "requires"),
    (OpCase(aten.scatter_add.default, (X, 0, torch.zeros(1, 3, 4, dtype=torch.int64), X)), "no-converter"),
    (OpCase(aten.diagonal.default, (X, 1), dynamic=((0, 0),)), "static"),
    *(
        (OpCase(op, (X, divisor)), "requires")
        for op in (aten.floor_divide.Scalar, aten.remainder.Scalar, aten.fmod.Scalar)
        for divisor in (3, 0.5, 0, -1.5, math.inf, math.nan, 65536)
    ),
    *((OpCase(op, (X, X)), "requires") for op in (aten.remainder.Tensor, aten.fmod.Tensor)),
    (OpCase(aten.avg_pool2d.default, (IMAGE, [2, 2], [2, 2], [0, 0], True), dynamic=((0, 2),)), "static"),
    (OpCase(aten.div.Tensor_mode, (X, X), {"rounding_mode": "floor"}), "requires"),
    (OpCase(aten.floor_divide.default, (X, X)), "requires"),
    (OpCase(aten.mm.default, (torch.ones(2, 2, dtype=torch.int64),) * 2), "dtype"),
    (OpCase(aten.max_pool2d_with_indices.default, (IMAGE, [2, 2])), "requires"),
    (OpCase(aten.max_pool2d_with_indices.default, (IMAGE, [2, 2], [1, 1], [0, 0], [2, 2]), results=(0,)), "requires"),
    (
        OpCase(aten.max_pool2d_with_indices.default, (IMAGE, [2, 2], [2, 2], [0, 0], [1, 1], True), results=(0,), dynamic=((0, 2),)),
        "static",
    ),
    (OpCase(aten._adaptive_avg_pool2d.default, (IMAGE, [3, 3])), "static"),
    (OpCase(aten._adaptive_avg_pool2d.default, (IMAGE, [4, 3]), dynamic=((0, 2),)), "static"),
    (OpCase(aten.native_layer_norm.default, (X, [4], None, None, 1e-5)), "requires"),
    (OpCase(aten.convolution.default, (X[:, :, :1], torch.ones(3, 2, 1), None, [4], [1], [1], True, [3], 1)), "static"),
    (OpCase(aten.conv_transpose1d.default, (X, torch.ones(3, 2, 1), None, [2], [3]), dynamic=((0, 2),)), "static"),
    (OpCase(aten.topk.default, (torch.ones(4000), 3841)), "requires"),
    (OpCase(aten.topk.default, (X, 0)), "requires"),
    (OpCase(aten.sort.default, (torch.ones(3841),)), "static"),
    (OpCase(aten.sort.default, (X, 0), dynamic=((0, 0),)), "static"),
    (OpCase(aten.index_put.default, (X, [None, torch.tensor([0])], X[:, :1])), "requires"),
    (OpCase(aten.index_put.default, (X, [torch.tensor([0])], X[:1], True)), "equals"),
    (OpCase(aten.slice_scatter.default, (X, X[:, ::2], 1, 0, 3, 2)), "equals"),
    (OpCase(aten.as_strided.default, (X, [3, 5, 4], [4, 12, 1])), "requires"),
    (OpCase(aten.linalg_vector_norm.default, (X, 3)), "requires"),
    (OpCase(aten.upsample_nearest2d.vec, (IMAGE, None, [2.1, 2.0])), "static"),
    (OpCase(aten.upsample_nearest2d.vec, (IMAGE, None, [1.5, 2.0]), dynamic=((0, 2),)), "static"),
    (OpCase(aten.upsample_bilinear2d.vec, (IMAGE, None, False, [1.3, 2.0])), "requires"),
    (OpCase(aten.scaled_dot_product_attention.default, (HEADS, HEADS, HEADS, None, 0.1)), "equals"),
    (OpCase(aten.scaled_dot_product_attention.default, (HEADS, HEADS, HEADS), dynamic=((0, 3), (1, 3))), "static"),
    (
        OpCase(
            aten.scaled_dot_product_attention.default,
            (HEADS, HEADS, HEADS),
            {"enable_gqa": True, "scale": 1.0},
            dynamic=((0, 1), (1, 1), (2, 1)),
        ),
        "static",
    ),
    (OpCase(aten.constant_pad_nd.default, (X, [SizeOf(0, 0), 0]), dynamic=((0, 0),)), "static"),
]


@pytest.mark.parametrize(("case", "rule"), REFUSED, ids=str)
def test_refusals_of_particular_converters(case, rule, registry):
    rejection = _refusal(registry, case)
    assert (None if rejection is None else rejection.rule) == rule


ROWS = torch.tensor([0, 0])
SCATTERS = [
    (OpCase(aten.scatter.src, (X, 0, torch.zeros(2, 3, 4, dtype=torch.int64), X)), "deterministic"),
    (OpCase(aten.index_put.default, (X, [ROWS], X[:2])), "deterministic"),
    (OpCase(aten.index_put.default, (X, [ROWS], torch.ones(4)), dynamic=((0, 0),)), "deterministic"),
    # Every write has the same value here.
    (OpCase(aten.index_put.default, (X, [ROWS], torch.ones(()))), None),
    (OpCase(aten.scatter.value, (X, 0, torch.zeros(2, 3, 4, dtype=torch.int64), 1.0)), None),
    (OpCase(aten.relu.default, (X,)), None),
]


@pytest.mark.parametrize(("case", "rule"), SCATTERS, ids=str)
def test_results_that_depend_on_the_order_of_writes_can_be_refused(case, rule, registry):
    assert _refusal(registry, case) is None
    rejection = _refusal(registry.deterministic(), case)
    assert (None if rejection is None else rejection.rule) == rule


def test_a_size_that_an_engine_cannot_compute_is_refused_where_it_is_made_and_read(registry):
    class Stretch(torch.nn.Module):
        def forward(self, x):
            return torch.arange(torch.sym_int(x.shape[0] * 1.5)) * 2

    program = torch.export.export(Stretch(), (torch.ones(8),), dynamic_shapes=({0: torch.export.Dim("n", min=4, max=64)},))
    calls = [OpCall.from_node(node) for node in program.graph.nodes if node.target in (aten.arange.default, aten.mul.Tensor)]
    for rejection in map(registry.reject, calls):
        assert rejection.rule == "static"
        assert "whole numbers" in rejection.message


def test_a_rejection_names_the_argument_and_what_was_expected(registry):
    rejection = _refusal(registry, OpCase(aten.relu.default, (torch.ones(2, dtype=torch.float64),)))
    assert rejection.target == "aten.relu.default"
    assert "self: expected" in rejection.message
    assert "float64" in rejection.message
