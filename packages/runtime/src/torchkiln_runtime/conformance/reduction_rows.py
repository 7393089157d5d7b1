"""Rows of the layers that combine the elements along axes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from torchkiln_core.layers import Cumulative, CumulativeOp, Normalization, Reduce, ReduceOp, Softmax, TopK, TopKOp
from torchkiln_runtime.conformance.fills import EDGE_COUNT, edges, positive, random, ties, with_infinities
from torchkiln_runtime.conformance.row import FLOATS, NUMBERS, Operand, Row, apply

_SOFTMAX = 2
"""Factor on the tolerance of softmax, whose bfloat16 results are off by about 2%."""


def reduction_rows() -> Iterator[Row]:
    """Every reduction."""
    yield from _reductions()
    yield from _softmax()
    yield from _topk()
    yield from _normalizations()
    yield from _cumulative()


def _reductions() -> Iterator[Row]:
    for op in ReduceOp:
        for dtype in NUMBERS:
            if op is ReduceOp.AVG and not dtype.is_floating_point:
                continue
            is_exact = op in (ReduceOp.MAX, ReduceOp.MIN) or not dtype.is_floating_point
            fill = positive if op is ReduceOp.PROD and dtype.is_floating_point else random
            for case, axes, keep in (("last", (2,), True), ("first", (0,), False), ("two", (0, 2), False), ("all", (0, 1, 2), False)):
                operand = Operand(("n", "m", "k"), dtype, fill)
                yield Row("Reduce", f"{op.value} {case}", dtype, (operand,), apply(Reduce(op, axes, keep)), is_exact, relaxed=4)
            if dtype.is_floating_point:
                for case, shape, axis in (("edges", ("n", EDGE_COUNT), 0), ("all edges", ("n", EDGE_COUNT), 1)):
                    operand = Operand(shape, dtype, edges)
                    yield Row("Reduce", f"{op.value} {case}", dtype, (operand,), apply(Reduce(op, (axis,), False)), is_exact, relaxed=4)
            if op in (ReduceOp.SUM, ReduceOp.PROD):
                operand = Operand(("n", 0), dtype, random)
                yield Row("Reduce", f"{op.value} of nothing", dtype, (operand,), apply(Reduce(op, (1,), False)), exact=True)
            yield Row("Reduce", f"{op.value} empty", dtype, (Operand((0, 3), dtype, random),), apply(Reduce(op, (1,), False)), exact=True)


def _softmax() -> Iterator[Row]:
    for dtype in FLOATS:
        for case, shape, axis in (
            ("rank 1", ("n",), 0),
            ("axis 0", ("n", "m"), 0),
            ("axis 1 of 3", ("n", "m", "k"), 1),
            ("last of 4", (2, "n", 4, "k"), 3),
            ("empty", ("n", 0), 1),
            ("axis of size 1", ("n", 1), 1),
        ):
            yield Row("Softmax", case, dtype, (Operand(shape, dtype, random),), apply(Softmax(axis)), relaxed=_SOFTMAX)
        yield Row("Softmax", "masked", dtype, (Operand(("n", 9), dtype, with_infinities),), apply(Softmax(1)), relaxed=_SOFTMAX)
        yield Row("Softmax", "edges", dtype, (Operand(("n", EDGE_COUNT), dtype, edges),), apply(Softmax(1)), relaxed=_SOFTMAX)
        yield Row("Softmax", "column edges", dtype, (Operand(("n", EDGE_COUNT), dtype, edges),), apply(Softmax(0)), relaxed=_SOFTMAX)


def _topk() -> Iterator[Row]:
    for op in TopKOp:
        for dtype in NUMBERS:
            for case, shape, k, axis, fill in (
                ("ties", ("n", 20), 7, 1, ties),
                ("axis 0", (20, "n"), 20, 0, ties),
                ("rank 1", (16,), 5, 0, ties),
                ("rank 1 dynamic", ("n",), 1, 0, ties),
                ("axis 1 of 3", ("n", 12, 3), 4, 1, random),
                ("large", (2, 4000), 3840, 1, ties),
                ("edges", ("n", EDGE_COUNT), EDGE_COUNT, 1, edges),
                ("empty", (0, 5), 2, 1, random),
            ):
                yield Row("TopK", f"{op.value} {case}", dtype, (Operand(shape, dtype, fill),), apply(TopK(op, k, axis)), exact=True)


def _normalizations() -> Iterator[Row]:
    for dtype in FLOATS:
        for case, shape, weights, layer in (
            ("layer 1 axis", ("n", "m", 32), (1, 1, 32), Normalization((2,), 1e-5)),
            ("layer 2 axes", ("n", 6, 8), (1, 6, 8), Normalization((1, 2), 1e-6)),
            ("layer wide", ("n", 1030), (1, 1030), Normalization((1,), 1e-5)),
            ("layer rank 1", (12,), (12,), Normalization((0,), 1e-5)),
            ("group", ("n", 6, 4, 5), (1, 6, 1, 1), Normalization((2, 3), 1e-5, 3)),
            ("group rank 3", ("n", 6, 8), (1, 6, 1), Normalization((2,), 1e-5, 2)),
            ("group per channel", ("n", 6, 4, 5), (1, 6, 1, 1), Normalization((2, 3), 1e-5, 6)),
            ("group dynamic", ("n", 6, "m", "k"), (1, 6, 1, 1), Normalization((2, 3), 1e-5, 3)),
        ):
            operands = (Operand(shape, dtype, random), Operand(weights, dtype, positive), Operand(weights, dtype, random))
            yield Row("Normalization", case, dtype, operands, apply(layer), relaxed=8)


def _cumulative() -> Iterator[Row]:
    for dtype in NUMBERS:
        for case, shape, axis in (
            ("rank 1", ("n",), 0),
            ("axis 0", ("n", "m"), 0),
            ("axis 1 of 3", ("n", "m", 3), 1),
            ("empty", (2, 0), 1),
        ):
            layer = apply(Cumulative(CumulativeOp.SUM, axis))
            yield Row("Cumulative", f"SUM {case}", dtype, (Operand(shape, dtype, random),), layer, not dtype.is_floating_point, relaxed=4)
    yield Row(
        "Cumulative", "SUM long", torch.float32, (Operand(("n", 5000), torch.float32, positive),), apply(Cumulative(CumulativeOp.SUM, 1))
    )
