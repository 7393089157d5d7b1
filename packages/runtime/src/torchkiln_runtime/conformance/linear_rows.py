"""Rows of matrix products, convolutions and pooling."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from torchkiln_core import Layer, Network, Value
from torchkiln_core.layers import Convolution, Deconvolution, Einsum, MatrixMultiply, MatrixOp, Pooling, PoolingKind
from torchkiln_runtime.conformance.fills import EDGE_COUNT, edges, one_zero, random
from torchkiln_runtime.conformance.row import FLOATS, Operand, Row, Shape, Writer, apply


def linear_rows() -> Iterator[Row]:
    """Every layer with windows or products."""
    for dtype in FLOATS:
        yield from _products(dtype)
        yield from _einsums(dtype)
        yield from _convolutions(dtype)
        yield from _deconvolutions(dtype)
        yield from _poolings(dtype)


def _products(dtype: torch.dtype) -> Iterator[Row]:
    none, transpose, vector = MatrixOp.NONE, MatrixOp.TRANSPOSE, MatrixOp.VECTOR
    for case, left, right, ops in (
        ("plain", ("n", 24), (24, "m"), (none, none)),
        ("transposed", (24, "n"), ("m", 24), (transpose, transpose)),
        ("batched", (2, "n", 24), (2, 24, "m"), (none, none)),
        ("broadcast", (1, "n", 24), ("k", 24, "m"), (none, none)),
        ("vector right", ("n", 24), (24,), (none, vector)),
        ("vector left", (24,), (24, "m"), (vector, none)),
        ("dot", (24,), (24,), (vector, vector)),
        ("batched vector", ("n", 5, 24), ("n", 24), (none, vector)),
        ("large", (64, 512), (512, 64), (none, none)),
        ("no rows", (0, 4), (4, 3), (none, none)),
        ("nothing to add", ("n", 0), (0, 3), (none, none)),
        ("rank 6", (1, 2, 1, 2, "n", 8), (1, 1, 2, 2, 8, 3), (none, none)),
    ):
        operands = (Operand(left, dtype, random), Operand(right, dtype, random))
        yield Row("MatrixMultiply", case, dtype, operands, apply(MatrixMultiply(*ops)), relaxed=16)
    operands = (Operand(("n", EDGE_COUNT), dtype, edges), Operand((EDGE_COUNT, 3), dtype, random))
    yield Row("MatrixMultiply", "edges", dtype, operands, apply(MatrixMultiply()), relaxed=16)


def _einsums(dtype: torch.dtype) -> Iterator[Row]:
    cases: tuple[tuple[str, tuple[Shape, ...]], ...] = (
        ("ij,jk->ik", (("n", 24), (24, "m"))),
        ("bij,bkj->bik", (("n", "m", 8), ("n", 5, 8))),
        ("bhqd,bhkd->bhqk", (("n", 2, "m", 8), (1, 2, "k", 8))),
        ("ij->ji", (("n", 7),)),
        ("ij->i", (("n", 24),)),
        ("i,i->", ((24,), (24,))),
        ("i,j->ij", (("n",), ("m",))),
        ("ij,jk,kl->il", (("n", 8), (8, 6), (6, "m"))),
        ("bi,bi->bi", (("n", 9), (1, 9))),
        ("i,->i", (("n",), ())),
    )
    for equation, shapes in cases:
        operands = tuple(Operand(shape, dtype, random) for shape in shapes)
        yield Row("Einsum", equation, dtype, operands, apply(Einsum(equation)), relaxed=16)


def _held(layer: Layer, kernel: tuple[int, ...], bias: int | None, dtype: torch.dtype) -> Writer:
    """A writer with a constant kernel and bias."""
    generator = torch.Generator().manual_seed(5)
    constants = [random(kernel, dtype, generator)] + ([] if bias is None else [random((bias,), dtype, generator)])

    def write(net: Network, image: Value) -> Value:
        return net.add(layer, image, *map(net.constant, constants))

    return write


def _convolutions(dtype: torch.dtype) -> Iterator[Row]:
    for case, shape, kernel, bias, layer in (
        ("plain", ("n", 4, 9, 8), (6, 4, 3, 3), 6, Convolution((1, 1), (0, 0), (0, 0), (1, 1))),
        ("no bias", ("n", 4, 9, 8), (6, 4, 3, 3), None, Convolution((1, 1), (1, 1), (1, 1), (1, 1))),
        ("strided", ("n", 4, 9, 8), (6, 4, 3, 2), 6, Convolution((2, 3), (1, 0), (1, 0), (1, 1))),
        ("uneven padding", ("n", 4, 9, 8), (6, 4, 3, 3), 6, Convolution((2, 2), (0, 1), (2, 0), (1, 1))),
        ("dilated", ("n", 4, 9, 8), (6, 4, 3, 3), 6, Convolution((1, 1), (2, 2), (2, 2), (2, 2))),
        ("grouped", ("n", 4, 9, 8), (6, 2, 3, 3), 6, Convolution((1, 1), (1, 1), (1, 1), (1, 1), 2)),
        ("depthwise", ("n", 4, 9, 8), (4, 1, 3, 3), 4, Convolution((1, 1), (1, 1), (1, 1), (1, 1), 4)),
        ("1x1", ("n", 4, 9, 8), (6, 4, 1, 1), 6, Convolution((1, 1), (0, 0), (0, 0), (1, 1))),
        ("dynamic image", (2, 4, "k", "m"), (6, 4, 3, 3), 6, Convolution((1, 1), (1, 1), (1, 1), (1, 1))),
        ("3-d", ("n", 2, 5, 6, 4), (4, 2, 3, 3, 2), 4, Convolution((1, 2, 1), (1, 0, 0), (1, 0, 0), (1, 1, 1))),
    ):
        yield Row("Convolution", case, dtype, (Operand(shape, dtype, random),), _held(layer, kernel, bias, dtype), relaxed=16)
    computed = tuple(Operand(shape, dtype, random) for shape in (("n", 4, 9, 8), (6, 4, 3, 3), (6,)))
    yield Row("Convolution", "computed kernel", dtype, computed, apply(Convolution((1, 1), (1, 1), (1, 1), (1, 1))), relaxed=16)


def _deconvolutions(dtype: torch.dtype) -> Iterator[Row]:
    for case, shape, kernel, bias, layer in (
        ("plain", ("n", 4, 5, 6), (4, 3, 3, 3), 3, Deconvolution((1, 1), (0, 0), (0, 0), (1, 1))),
        ("strided", ("n", 4, 5, 6), (4, 3, 3, 3), None, Deconvolution((2, 2), (1, 1), (1, 1), (1, 1))),
        ("output padding", ("n", 4, 5, 6), (4, 3, 3, 3), 3, Deconvolution((2, 2), (1, 1), (0, 0), (1, 1))),
        ("grouped", ("n", 4, 5, 6), (4, 3, 2, 2), 6, Deconvolution((2, 2), (0, 0), (0, 0), (1, 1), 2)),
        ("dilated", ("n", 4, 5, 6), (4, 3, 3, 3), 3, Deconvolution((1, 1), (1, 1), (1, 1), (2, 2))),
        ("3-d", ("n", 2, 3, 4, 3), (2, 3, 2, 2, 2), 3, Deconvolution((2, 2, 2), (0, 0, 0), (0, 0, 0), (1, 1, 1))),
    ):
        yield Row("Deconvolution", case, dtype, (Operand(shape, dtype, random),), _held(layer, kernel, bias, dtype), relaxed=16)
    computed = tuple(Operand(shape, dtype, random) for shape in (("n", 4, 5, 6), (4, 3, 3, 3), (3,)))
    yield Row("Deconvolution", "computed kernel", dtype, computed, apply(Deconvolution((2, 2), (1, 1), (1, 1), (1, 1))), relaxed=16)


def _poolings(dtype: torch.dtype) -> Iterator[Row]:
    for kind in PoolingKind:
        for case, shape, layer in (
            ("plain", ("n", 3, 8, 9), Pooling(kind, (2, 2), (2, 2), (0, 0), (0, 0))),
            ("padded", ("n", 3, 8, 9), Pooling(kind, (3, 3), (2, 2), (1, 1), (1, 1))),
            ("uneven padding", ("n", 3, 8, 9), Pooling(kind, (3, 2), (2, 1), (1, 0), (0, 1))),
            ("counted padding", ("n", 3, 8, 9), Pooling(kind, (3, 3), (1, 1), (1, 1), (1, 1), count_padding=True)),
            ("dynamic image", (2, 3, "k", "m"), Pooling(kind, (2, 2), (1, 1), (1, 1), (1, 1))),
            ("3-d", ("n", 2, 5, 6, 4), Pooling(kind, (2, 2, 2), (2, 2, 1), (0, 0, 0), (0, 0, 0))),
        ):
            operand = Operand(shape, dtype, random)
            yield Row("Pooling", f"{kind.value} {case}", dtype, (operand,), apply(layer), kind is PoolingKind.MAX, relaxed=4)
        # Which of two zeros is the larger one is nowhere said.
        operand = Operand(("n", 2, 6, 4), dtype, one_zero if kind is PoolingKind.MAX else edges)
        layer = Pooling(kind, (2, 2), (1, 1), (1, 1), (1, 1))
        yield Row("Pooling", f"{kind.value} edges", dtype, (operand,), apply(layer), kind is PoolingKind.MAX, relaxed=4)
