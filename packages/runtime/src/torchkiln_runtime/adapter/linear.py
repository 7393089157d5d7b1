"""Layers that multiply, and pooling."""

from __future__ import annotations

from typing import Any

import torch

from torchkiln_core import BuildError
from torchkiln_core.layers import Convolution, Deconvolution, Einsum, MatrixMultiply, MatrixOp, Pooling
from torchkiln_runtime.adapter.definition import Definition
from torchkiln_runtime.adapter.few import apart, are_few, without

Kernel = Any | torch.Tensor
"""A computed kernel or bias is an ``ITensor``, a constant one the tensor itself: TensorRT takes those as weights of the layer."""
_NARROW = 64
"""Rows or columns of a product that may become part of another kernel."""


def matrix_multiply(to: Definition, layer: MatrixMultiply, a: Any, b: Any) -> Any:
    """``IMatrixMultiplyLayer``, or elementwise products where there is nothing to sum, or one row as two.

    Of attention with one query or one key, followed by elementwise layers, TensorRT-RTX 1.6 computes one element of each row and leaves
    the others unwritten (seen on an H200), unless it is written so. Sums of few products are kept apart: see ``few``.
    """
    if MatrixOp.VECTOR in (layer.left, layer.right):
        summed = tuple(a.shape)[-2 if layer.left is MatrixOp.TRANSPOSE else -1]
        return _of_few_by_vector(to, layer, a, b) if _are_few((a, b), summed) else _product(to, layer, a, b)
    rows, summed = tuple(a.shape)[-2:] if layer.left is MatrixOp.NONE else tuple(a.shape)[:-3:-1]
    if summed == 1:
        column, row = (_transposed(to, item) if op is MatrixOp.TRANSPOSE else item for item, op in ((a, layer.left), (b, layer.right)))
        return to.network.add_elementwise(column, row, to.trt.ElementWiseOperation.PROD)
    if rows != 1 or all(size == 1 for item in (a, b) for size in tuple(item.shape)[:-2]):
        result = _product(to, layer, a, b)
    else:
        result = _of_one_row(to, layer, a, b)
    columns = tuple(b.shape)[-1] if layer.right is MatrixOp.NONE else tuple(b.shape)[-2]
    is_apart = result is not None and min(rows, columns) <= _NARROW and _are_few((a, b), summed)
    return apart(to, result.get_output(0)) if is_apart else result


def _product(to: Definition, layer: MatrixMultiply, a: Any, b: Any) -> Any:
    """``IMatrixMultiplyLayer``."""
    ops = to.trt.MatrixOperation
    return to.network.add_matrix_multiply(a, getattr(ops, layer.left.value), b, getattr(ops, layer.right.value))


def _are_few(operands: tuple[Any, Any], summed: int) -> bool:
    """Whether a product of fixed shapes sums a few elements."""
    return are_few(summed) and all(-1 not in tuple(item.shape) for item in operands)


def _of_few_by_vector(to: Definition, layer: MatrixMultiply, a: Any, b: Any) -> Any:
    """A product with vectors as one with matrices, of one row on the left and one column on the right, so that its rank stays."""
    left, right, axes = layer.left, layer.right, []
    if left is MatrixOp.VECTOR:
        a, left = to.reshape(a, (*tuple(a.shape)[:-1], 1, tuple(a.shape)[-1])), MatrixOp.NONE
        axes.append(-2)
    if right is MatrixOp.VECTOR:
        b, right = to.reshape(b, (*tuple(b.shape), 1)), MatrixOp.NONE
        axes.append(-1)
    kept = matrix_multiply(to, MatrixMultiply(left, right), a, b)
    return without(to, kept, [len(tuple(kept.shape)) + axis for axis in axes])


def _of_one_row(to: Definition, layer: MatrixMultiply, a: Any, b: Any) -> Any:
    """The first row of a product of two equal ones."""
    rank = len(a.shape)
    doubled = to.network.add_concatenation([a, a])
    doubled.axis = rank - 2 if layer.left is MatrixOp.NONE else rank - 1
    product = _product(to, layer, doubled.get_output(0), b)
    return None if product is None else to.network.add_gather(product.get_output(0), to.constant(torch.tensor([0])), rank - 2)


def _transposed(to: Definition, matrix: Any) -> Any:
    """``[*, M, N] -> [*, N, M]``."""
    rank = len(matrix.shape)
    layer = to.network.add_shuffle(matrix)
    layer.first_transpose = to.trt.Permutation([*range(rank - 2), rank - 1, rank - 2])
    return layer.get_output(0)


def einsum(to: Definition, layer: Einsum, *inputs: Any) -> Any:
    """``IEinsumLayer``."""
    return to.network.add_einsum(list(inputs), layer.equation)


def convolution(to: Definition, layer: Convolution, input: Any, kernel: Kernel, bias: Kernel | None = None) -> Any:
    """``IConvolutionLayer``."""
    return _windowed(to, to.network.add_convolution_nd, kernel.shape[0], layer, (input, kernel, bias))


def deconvolution(to: Definition, layer: Deconvolution, input: Any, kernel: Kernel, bias: Kernel | None = None) -> Any:
    """``IDeconvolutionLayer``.

    Raises:
        BuildError: bfloat16 with TensorRT-RTX, which builds such a layer (in float32 between casts) and then finds no kernel on the GPU.
    """
    if input.dtype == to.dtype(torch.bfloat16) and to.library.name == "tensorrt_rtx":
        version = f"{to.library.name} {to.library.version}"
        raise BuildError(f"{version} has no deconvolution in bfloat16", fix="run it in float32 or float16, or in PyTorch")
    return _windowed(to, to.network.add_deconvolution_nd, kernel.shape[1] * layer.groups, layer, (input, kernel, bias))


def _windowed(to: Definition, add: Any, maps: int, layer: Convolution | Deconvolution, operands: tuple[Any, ...]) -> Any:
    image, kernel, bias = operands
    none = to.trt.Weights(image.dtype)
    given = [to.weights(part) if isinstance(part, torch.Tensor) else none for part in (kernel, bias)]
    result = add(image, maps, to.dims(tuple(kernel.shape)[2:]), *given)
    if result is None:
        return None
    result.stride_nd = to.dims(layer.stride)
    result.pre_padding = to.dims(layer.pre_padding)
    result.post_padding = to.dims(layer.post_padding)
    result.dilation_nd = to.dims(layer.dilation)
    result.num_groups = layer.groups
    for index, part in ((1, kernel), (2, bias)):
        if part is not None and not isinstance(part, torch.Tensor):
            result.set_input(index, part)
    return result


def pooling(to: Definition, layer: Pooling, input: Any) -> Any:
    """``IPoolingLayer``."""
    result = to.network.add_pooling_nd(input, getattr(to.trt.PoolingType, layer.op.value), to.dims(layer.window))
    if result is None:
        return None
    result.stride_nd = to.dims(layer.stride)
    result.pre_padding = to.dims(layer.pre_padding)
    result.post_padding = to.dims(layer.post_padding)
    result.average_count_excludes_padding = not layer.count_padding
    return result
