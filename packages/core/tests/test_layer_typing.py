"""Operands that TensorRT would refuse are refused while the network is written."""

from __future__ import annotations

import pytest
import torch

from torchkiln_core import InternalError, Network
from torchkiln_core.layers import (
    Activation,
    ActivationKind,
    Attention,
    CausalMask,
    Concatenation,
    Convolution,
    Cumulative,
    CumulativeOp,
    Deconvolution,
    Dequantize,
    Einsum,
    Elementwise,
    ElementwiseOp,
    Gather,
    GatherMode,
    GridSample,
    Interpolation,
    KVCacheUpdate,
    Linspace,
    MatrixMultiply,
    MatrixOp,
    Normalization,
    OneHot,
    ParametricRelu,
    Pooling,
    PoolingKind,
    Quantize,
    RandomNormal,
    RandomUniform,
    Reduce,
    ReduceOp,
    Resize,
    ResizeCoordinates,
    RotaryEmbedding,
    Scatter,
    ScatterMode,
    Select,
    Shuffle,
    Slice,
    SliceMode,
    Softmax,
    TopK,
    TopKOp,
    Unary,
    UnaryOp,
)

F16, F32, F64, I8, I32, I64, BOOL = torch.float16, torch.float32, torch.float64, torch.int8, torch.int32, torch.int64, torch.bool
ADD = Elementwise(ElementwiseOp.SUM)
CONV = Convolution((1, 1), (0, 0), (0, 0), (1, 1))
HALF_PIXEL = ResizeCoordinates.HALF_PIXEL
RESIZE = Resize(Interpolation.LINEAR, HALF_PIXEL, (1, 4))
GRID = GridSample(Interpolation.LINEAR, SliceMode.FILL, False)
ROTARY = RotaryEmbedding(interleaved=False)
NORM = Normalization((1,), 1e-5)

REFUSED = [
    (Activation(ActivationKind.RELU), [(I32, 2)], "expected float32, float16 or bfloat16, got torch.int32"),
    (Activation(ActivationKind.TANH), [(F64, 2)], "got torch.float64"),
    (Unary(UnaryOp.EXP), [(I64, 2)], "Unary EXP: .*got torch.int64"),
    (Unary(UnaryOp.NEG), [(BOOL, 2)], "Unary NEG: .*got torch.bool"),
    (Unary(UnaryOp.NEG), [(I8, 2)], "Unary NEG: .*got torch.int8"),
    (Unary(UnaryOp.NOT), [(F32, 2)], "Unary NOT: expected bool"),
    (ADD, [(F32, 2), (F16, 2)], "expected operands of one dtype, got torch.float32, torch.float16"),
    (ADD, [(I32, 2), (I64, 2)], "one dtype"),
    (ADD, [(F32, 2, 2), (F32, 2)], "expected operands of one rank, got 2, 1"),
    (ADD, [(BOOL, 2), (BOOL, 2)], "Elementwise SUM: does not take torch.bool"),
    (Elementwise(ElementwiseOp.LESS), [(BOOL, 2), (BOOL, 2)], "Elementwise LESS: does not take torch.bool"),
    (Elementwise(ElementwiseOp.AND), [(I32, 2), (I32, 2)], "Elementwise AND: does not take torch.int32"),
    (ADD, [(F32, 2), (F32, 3)], "does not take"),
    (Select(), [(I32, 2), (F32, 2), (F32, 2)], "Select: expected a bool condition, got torch.int32"),
    (Select(), [(BOOL, 2), (F32, 2), (F16, 2)], "Select: expected operands of one dtype"),
    (Select(), [(BOOL, 2), (F32, 1, 2), (F32, 1, 2)], "Select: expected operands of one rank"),
    (Concatenation(0), [(F32, 2), (I32, 2)], "Concatenation: expected operands of one dtype"),
    (Concatenation(0), [(F32, 2), (F32, 2, 2)], "Concatenation: expected operands of one rank"),
    (Concatenation(-1), [(F32, 2), (F32, 2)], r"expected an axis in \[0, 1\), got -1"),
    (Concatenation(0), [(F32, 2, 3), (F32, 2, 4)], "does not take"),
    (Slice((0,), (1,), (1,)), [(F32, 2, 2)], "expected start, size and stride of rank 2"),
    (Slice((0,), None, (1,)), [(F32, 2)], "expected size as an attribute or as an operand"),
    (Slice((0,), (2,), (1,)), [(F32, 2), None, None, None, (F16, 1)], "Slice: expected operands of one dtype"),
    (Gather(GatherMode.DEFAULT, 2), [(F32, 2, 2), (I32, 2)], r"expected an axis in \[0, 2\), got 2"),
    (Gather(GatherMode.DEFAULT, 0), [(F32, 2), (F32, 2)], "expected int32 or int64 indices, got torch.float32"),
    (Gather(GatherMode.DEFAULT, 0, 1), [(F32, 2, 2), (I32, 2, 2)], "use ND"),
    (Gather(GatherMode.ELEMENT, 0), [(F32, 2, 2), (I32, 2)], "Gather ELEMENT: expected operands of one rank"),
    (Gather(GatherMode.ELEMENT, -1), [(F32, 2), (I32, 2)], r"Gather ELEMENT: expected an axis in \[0, 1\)"),
    (Scatter(ScatterMode.ELEMENT, 0), [(F32, 2), (I32, 2), (F16, 2)], "Scatter: expected operands of one dtype"),
    (Scatter(ScatterMode.ELEMENT, 1), [(F32, 2), (I32, 2), (F32, 2)], r"Scatter ELEMENT: expected an axis in \[0, 1\)"),
    (Scatter(ScatterMode.ND), [(F32, 2), (BOOL, 2, 1), (F32, 2)], "Scatter ND: expected int32 or int64 indices"),
    (Reduce(ReduceOp.SUM, (), True), [(F32, 2)], r"does not take axes \(\) of torch.float32"),
    (Reduce(ReduceOp.MAX, (0,), True), [(BOOL, 2)], r"does not take axes \(0,\) of torch.bool"),
    (Reduce(ReduceOp.SUM, (-1,), True), [(F32, 2)], "expected an axis"),
    (Reduce(ReduceOp.AVG, (0,), True), [(I32, 2)], "Reduce AVG: expected float32"),
    (Softmax(1), [(F32, 2)], "Softmax: expected an axis"),
    (Softmax(0), [(I32, 2)], "Softmax: expected float32"),
    (TopK(TopKOp.MAX, 0, 0), [(F32, 2)], "expected 1 <= k <= 3840, got 0"),
    (TopK(TopKOp.MAX, 3841, 0), [(F32, 5000)], "expected 1 <= k <= 3840, got 3841"),
    (TopK(TopKOp.MAX, 3, 0), [(F32, 2)], "expected k <= 2, the size of axis 0, got 3"),
    (Cumulative(CumulativeOp.SUM, 1), [(F32, 2)], "Cumulative: expected an axis"),
    (NORM, [(F32, 2, 3), (F32, 3), (F32, 3)], "Normalization: expected operands of one rank"),
    (NORM, [(F16, 2, 3), (F32, 1, 3), (F32, 1, 3)], "Normalization: expected operands of one dtype"),
    (MatrixMultiply(), [(I32, 2, 2), (I32, 2, 2)], "MatrixMultiply: expected float32"),
    (MatrixMultiply(), [(F32, 2, 2), (F16, 2, 2)], "MatrixMultiply: expected operands of one dtype"),
    (MatrixMultiply(), [(F32, 2, 2, 2), (F32, 2, 2)], "expected equal numbers of batch dimensions, got 1 and 0"),
    (MatrixMultiply(), [(F32, 2, 3), (F32, 2, 3)], "expected equal inner dimensions, got 3 and 2"),
    (MatrixMultiply(), [(F32, 2, 1, 1), (F32, 3, 1, 1)], "does not take"),
    (MatrixMultiply(MatrixOp.VECTOR), [(F32,), (F32, 2, 2)], "batch dimensions"),
    (CONV, [(F32, 1, 2, 3), (F32, 1, 2, 3)], "Convolution: expected input and kernel of rank 4, got 3 and 3"),
    (CONV, [(F32, 1, 2, 3, 3), (F16, 1, 2, 3, 3)], "Convolution: expected operands of one dtype"),
    (CONV, [(F32, 1, 2, 3, 3), (F32, 1, 3, 3, 3)], "Convolution: expected 3 channels, got 2"),
    (Convolution((1,), (0,), (0,), (1,)), [(F32, 1, 2, 3), (F32, 1, 2, 3)], "expected 2 or 3 spatial dimensions"),
    (Convolution((1, 1), (0, 0), (-1, 0), (1, 1)), [(F32, 1, 2, 3, 3), (F32, 1, 2, 1, 1)], "expected paddings of 0 or more"),
    (Deconvolution((1, 1), (0, 0), (0, -1), (1, 1)), [(F32, 1, 2, 3, 3), (F32, 2, 2, 1, 1)], "expected paddings of 0 or more"),
    (Deconvolution((1, 1), (0, 0), (0, 0), (1, 1)), [(F32, 1, 2, 3, 3), (F32, 3, 2, 1, 1)], "Deconvolution: expected 3 channels, got 2"),
    (Pooling(PoolingKind.MAX, (2, 2), (1, 1), (0, 0), (0, 0)), [(F32, 2, 3, 3)], "Pooling: expected input of rank 4, got 3"),
    (Pooling(PoolingKind.MAX, (2, 2), (1, 1), (0, 0), (0, 0)), [(I32, 1, 2, 3, 3)], "Pooling: expected float32"),
    (Pooling(PoolingKind.MAX, (2, 2), (1, 1), (-1, 0), (0, 0)), [(F32, 1, 2, 3, 3)], "expected paddings of 0 or more"),
    (RESIZE, [(I32, 1, 2)], "Resize: expected float32"),
    (RESIZE, [(F32, 2)], r"Resize: expected a shape or scales of rank 1, 1 or more, got \[1, 4\]"),
    (Resize(Interpolation.LINEAR, HALF_PIXEL), [(F32, 1, 2)], "expected one of shape, scales and a shape operand, got None, None and None"),
    (Resize(Interpolation.LINEAR, HALF_PIXEL, (1, 2), (1.0, 1.0)), [(F32, 1, 2)], "expected one of shape, scales"),
    (Resize(Interpolation.CUBIC, HALF_PIXEL, (2, 3, 4)), [(F32, 1, 3, 4)], "Resize CUBIC: expected dimension 0 to keep its size 1, got 2"),
    (Resize(Interpolation.NEAREST, HALF_PIXEL, (2, 1, 1, 1)), [(F32, 1, 1, 1, 1)], "Resize NEAREST: expected dimension 0 to keep its size"),
    (Resize(Interpolation.LINEAR, HALF_PIXEL, (1, 2)), [(F32, 1, 0)], "Resize: dimension 1 of size 0 has no pixels for 2"),
    (Resize(Interpolation.LINEAR, HALF_PIXEL, scales=(1.0, 1.7)), [(F32, 1, 5)], "expected scales that are multiples of 1/64"),
    (GRID, [(F32, 1, 2, 3, 4), (F16, 1, 2, 2, 2)], "GridSample: expected operands of one dtype"),
    (GRID, [(F32, 1, 2, 3, 4), (F32, 1, 2, 2)], "GridSample: expected operands of one rank"),
    (GRID, [(F32, 1, 2, 3, 4), (F32, 1, 2, 2, 3)], r"GridSample: expected a grid of shape \[1, '\*', 2\], got \[1, 2, 2, 3\]"),
    (GRID, [(F32, 1, 2, 3, 4), (F32, 2, 2, 2, 2)], r"GridSample: expected a grid of shape"),
    (GRID, [(F32, 1, 2, 3), (F32, 1, 2, 1)], "GridSample LINEAR: does not take 1 spatial dimensions"),
    (
        GridSample(Interpolation.CUBIC, SliceMode.FILL, False),
        [(F32, 1, 2, 3, 4, 5), (F32, 1, 2, 2, 2, 3)],
        "GridSample CUBIC: does not take 3 spatial dimensions",
    ),
    (
        GridSample(Interpolation.LINEAR, SliceMode.WRAP, False),
        [(F32, 1, 2, 3, 4), (F32, 1, 2, 2, 2)],
        "expected FILL, CLAMP or REFLECT, got WRAP",
    ),
    (Einsum("ij,jk"), [(F32, 2, 3), (F32, 3, 2)], "Einsum: expected lower-case letters, commas and an arrow, got 'ij,jk'"),
    (Einsum("...ij->...ji"), [(F32, 2, 3)], "Einsum: expected lower-case letters"),
    (Einsum("ii->i"), [(F32, 2, 2)], "Einsum ii->i: expected each letter once in a term"),
    (Einsum("ij->ik"), [(F32, 2, 2)], "and those of the result in an operand"),
    (Einsum("ij,jk->ik"), [(F32, 2, 3), (F32, 4, 2)], "Einsum ij,jk->ik: expected one size of 'j', got 3 and 4"),
    (Einsum("ij->ji"), [(F32, 2)], r"Einsum ij->ji: got operands of ranks \[1\]"),
    (Einsum("ij->ji"), [(I32, 2, 3)], "Einsum: expected float32"),
    (OneHot(3, 2), [(I64, 2), (F32, 2)], r"OneHot: expected an axis in \[0, 2\), got 2"),
    (OneHot(3, 0), [(F32, 2), (F32, 2)], "OneHot: expected int32 or int64 indices"),
    (OneHot(3, 0), [(I64, 2), (F32, 3)], r"OneHot: expected a depth of 1 or more and values \[off, on\], got 3 and \[3\]"),
    (Quantize(I32), [(F32, 2), (F32,)], "Quantize: expected int8 or float8_e4m3fn, got torch.int32"),
    (Quantize(I8), [(F32, 2), (F32, 2)], "Quantize: expected a scale of rank 0, got rank 1"),
    (Quantize(I8, axis=1), [(F32, 2, 3), (F32, 2)], "Quantize: dimension 1 of size 3 has not 2 parts of 1"),
    (Quantize(I8, axis=2), [(F32, 2, 3), (F32, 2)], "Quantize: expected an axis"),
    (Quantize(I8, block=(2, 1)), [(F32, 5, 3), (F32, 2, 3)], "Quantize: dimension 0 of size 5 has not 2 parts of 2"),
    (Quantize(I8, axis=0, block=(2, 1)), [(F32, 4, 3), (F32, 2, 3)], "Quantize: expected an axis or a block, got both"),
    (Quantize(I8), [(F32,), (F32,)], "Quantize: expected an input of rank 1 or more"),
    (Quantize(I8), [(F32, 2), (I32,)], "Quantize: expected float32"),
    (Dequantize(F32), [(I32, 2), (F32,)], "Dequantize: expected int8 or float8_e4m3fn, got torch.int32"),
    (Dequantize(I32), [(I8, 2), (F32,)], "Dequantize: expected float32, float16 or bfloat16, got torch.int32"),
    (ParametricRelu(), [(F32, 2, 3), (F32, 2, 2)], "ParametricRelu: expected 1 or 3 slopes in dimension 1, got 2"),
    (ParametricRelu(), [(F32, 2, 3), (F32, 3)], "ParametricRelu: expected operands of one rank"),
    (Attention(), [(F32, 1, 2, 3)] * 3, "Attention: expected query of rank 4, got rank 3"),
    (Attention(), [(F32, 1, 2, 3, 4), (F32, 1, 2, 5, 4), (F32, 1, 2, 5, 8)], "expected key and value of one size in dimension 3"),
    (Attention(), [(F32, 1, 2, 3, 4), (F32, 1, 2, 5, 6), (F32, 1, 2, 5, 6)], "expected query and key of one size in dimension 3"),
    (Attention(), [(F32, 1, 3, 3, 4), (F32, 1, 2, 5, 4), (F32, 1, 2, 5, 4)], "Attention: expected a multiple of 2 query heads, got 3"),
    (Attention(), [(F16, 1, 2, 3, 4)] * 3 + [(F32, 1, 2, 3, 3)], "Attention: expected operands of one dtype"),
    (Attention(), [(F32, 1, 2, 3, 4)] * 3 + [(BOOL, 3, 3)], "Attention: expected mask of rank 4, got rank 2"),
    (Attention(), [(F32, 1, 2, 3, 4)] * 3 + [(BOOL, 1, 1, 3, 1)], "Attention: expected a mask of size 3 in dimension 3, got 1"),
    (Attention(CausalMask.UPPER_LEFT), [(F32, 1, 2, 3, 4)] * 3 + [(BOOL, 1, 1, 3, 3)], "got a mask and UPPER_LEFT"),
    (ROTARY, [(F32, 1, 2, 3, 8), (F32, 1, 3, 3), (F32, 1, 3, 3)], "RotaryEmbedding: expected 8 / 2 angles for 8 features, got 3"),
    (ROTARY, [(F32, 1, 2, 3, 8), (F32, 1, 2, 4), (F32, 1, 2, 4)], r"RotaryEmbedding: expected angles for \[1, 3\], got \[1, 2\]"),
    (ROTARY, [(F32, 1, 2, 3, 8), (F32, 3, 4), (F32, 3, 4)], "RotaryEmbedding: expected cosine of rank 3, got rank 2"),
    (ROTARY, [(F32, 1, 2, 3, 8), (F32, 9, 4), (F32, 9, 4), (F32, 1, 3)], "RotaryEmbedding: expected int32 or int64 positions of rank 2"),
    (ROTARY, [(F16, 1, 2, 3, 8), (F32, 1, 3, 4), (F32, 1, 3, 4)], "RotaryEmbedding: expected operands of one dtype"),
    (KVCacheUpdate(), [(F32, 1, 2, 4, 8), (F32, 1, 2, 5, 8), (I32, 1)], "expected a static size of 5 or more in dimension 2, got 4"),
    (KVCacheUpdate(), [(F32, 1, 2, 4, 8), (F32, 1, 2, 3, 8), (I64, 1)], "KVCacheUpdate: expected int32 places, got torch.int64"),
    (KVCacheUpdate(), [(F32, 1, 2, 4, 8), (F32, 1, 3, 3, 8), (I32, 1)], "expected cache and update of one size in dimension 1"),
    (Shuffle(dims=(5,)), [(F32, 2, 3)], r"Shuffle: expected a shape of 6 elements, got \[5\]"),
    (Shuffle(dims=(-1, 4)), [(F32, 2, 3)], "expected a shape of 6 elements"),
    (Shuffle(dims=(-1, -1)), [(F32, 2, 3)], "expected a shape of 6 elements"),
    (Shuffle(dims=(-1, 0)), [(F32, 2, 0)], "expected a shape of 0 elements"),
    (Shuffle(first=(0,)), [(F32, 2, 3)], "does not take"),
]


@pytest.mark.parametrize(("layer", "operands", "message"), REFUSED, ids=lambda item: repr(item)[:60] if not isinstance(item, str) else "")
def test_wrong_operands(layer, operands, message):
    net = Network()
    values = [None if item is None else net.input("x", item[0], item[1:]) for item in operands]
    with net.scope("call", "model.py:9 in forward: y = f(x)"), pytest.raises(InternalError, match=message) as caught:
        net.add_many(layer, *values)
    assert caught.value.layer == f"call/{layer.kind()}"
    assert caught.value.where == "model.py:9 in forward: y = f(x)"
    assert "where: model.py:9" in str(caught.value)
    assert net.steps == []


def test_sizes_that_do_not_fit():
    net = Network()
    x = net.input("x", F32, (2, 3))
    with pytest.raises(InternalError, match="expected dims or a shape operand, got both"):
        net.add(Shuffle(dims=(6,)), x, net.size_tensor((6,)))
    with pytest.raises(InternalError, match="operand 1 must hold sizes"):
        net.add(Shuffle(), x, net.input("shape", I64, (2,)))
    with pytest.raises(InternalError, match="expected a shape of rank 1, got rank 2"):
        net.add(Linspace(0, 1, I64), net.size_tensor((2, 3)))
    with pytest.raises(InternalError, match=r"expected integers for torch.int32, got 0.5 and 1"):
        net.add(Linspace(0.5, 1, torch.int32), net.size_tensor((2,)))


@pytest.mark.parametrize("index", [-1, 3])
@pytest.mark.parametrize(
    "layer", [Gather(GatherMode.DEFAULT, 0), Gather(GatherMode.ELEMENT, 0), Gather(GatherMode.ND)], ids=lambda layer: layer.mode.value
)
def test_an_index_outside_is_refused_at_run_time(layer, index):
    indices = torch.tensor([[index]]) if layer.mode is GatherMode.ND else torch.tensor([index])
    with pytest.raises(IndexError, match=f"indices {index} to {index} leave a dimension of size 3"):
        layer.run(torch.zeros(3), indices)


@pytest.mark.parametrize(
    ("layer", "operands"),
    [
        (OneHot(3, 0), (torch.tensor([0, 3]), torch.tensor([0.0, 1.0]))),
        (ROTARY, (torch.ones(1, 1, 1, 2), torch.ones(4, 1), torch.ones(4, 1), torch.tensor([[4]]))),
        (KVCacheUpdate(), (torch.ones(1, 1, 4, 1), torch.ones(1, 1, 2, 1), torch.tensor([3], dtype=I32))),
    ],
    ids=["one-hot", "rotary", "cache"],
)
def test_places_outside(layer, operands):
    with pytest.raises(IndexError, match=layer.kind()):
        layer.run(*operands)


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (RandomUniform(1.0, 0.0, F32), [2], "expected low <= high, got 1.0 and 0.0"),
        (RandomUniform(0.0, 1.0, torch.bfloat16), [2], "expected float32 or float16 of rank 1 or more, got torch.bfloat16 of rank 1"),
        (RandomNormal(0.0, 1.0, F32), [], "got torch.float32 of rank 0"),
        (RandomNormal(0.0, -1.0, F32), [2], "expected a standard deviation of 0 or more, got -1.0"),
    ],
)
def test_random_numbers_that_no_engine_draws(layer, shape, message):
    with pytest.raises(InternalError, match=message):
        layer.run(shape)
