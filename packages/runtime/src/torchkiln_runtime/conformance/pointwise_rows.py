"""Rows of the layers that act on each element."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from torchkiln_core.layers import Activation, ActivationKind, Cast, Elementwise, ElementwiseOp, ParametricRelu, Select, Unary, UnaryOp
from torchkiln_runtime.conformance.fills import EDGE_COUNT, divisors, edges, in_range, ordered, positive, random
from torchkiln_runtime.conformance.row import ALL, FLOATS, INTEGERS, NUMBERS, Fill, Operand, Row, Shape, apply

_PARAMETERS: dict[ActivationKind, tuple[float, float]] = {
    ActivationKind.LEAKY_RELU: (0.1, 0.0),
    ActivationKind.ELU: (1.5, 0.0),
    ActivationKind.SELU: (1.6732632423543772, 1.0507009873554805),
    ActivationKind.SOFTPLUS: (1.0, 1.0),
    ActivationKind.CLIP: (-0.75, 2.0),
    ActivationKind.HARD_SIGMOID: (1 / 6, 0.5),
    ActivationKind.SCALED_TANH: (1.7, 0.6),
    ActivationKind.THRESHOLDED_RELU: (0.5, 0.0),
}
_EXACT_ACTIVATIONS = (ActivationKind.RELU, ActivationKind.CLIP, ActivationKind.THRESHOLDED_RELU)
_ROUNDED_BETWEEN = (
    ActivationKind.ELU,
    ActivationKind.SELU,
    ActivationKind.SOFTPLUS,
    ActivationKind.HARD_SIGMOID,
    ActivationKind.SCALED_TANH,
    ActivationKind.GELU_ERF,
    ActivationKind.GELU_TANH,
)
_EXACT_UNARY = (
    UnaryOp.ABS,
    UnaryOp.NEG,
    UnaryOp.CEIL,
    UnaryOp.FLOOR,
    UnaryOp.NOT,
    UnaryOp.SIGN,
    UnaryOp.ROUND,
    UnaryOp.ISINF,
    UnaryOp.ISNAN,
)
_COMPARISONS = (ElementwiseOp.EQUAL, ElementwiseOp.GREATER, ElementwiseOp.LESS)
_LOGICAL = (ElementwiseOp.AND, ElementwiseOp.OR, ElementwiseOp.XOR)
_EXTREMES = (ElementwiseOp.MAX, ElementwiseOp.MIN)
_DIVISIONS = (ElementwiseOp.DIV, ElementwiseOp.FLOOR_DIV)


def pointwise_rows() -> Iterator[Row]:
    """Every pointwise layer."""
    yield from _casts()
    yield from _activations()
    yield from _unary()
    yield from _elementwise()
    yield from _selects()
    yield from _parametric_relus()


def _casts() -> Iterator[Row]:
    for source in (*ALL, torch.int8, torch.uint8):
        for target in (*ALL, torch.int8, torch.uint8):
            if source is target:
                continue
            name = str(target).removeprefix("torch.")
            narrow = not target.is_floating_point and target is not torch.bool
            fill: Fill = edges
            if narrow and source.is_floating_point:
                # What an infinity or NaN becomes is undefined in torch too.
                fill = in_range(0 if target is torch.uint8 else -120, 120)
            elif target in (torch.int8, torch.uint8) or source in (torch.int8, torch.uint8):
                fill = random if source is not torch.bool and target is not torch.uint8 else in_range(0, 1 if source is torch.bool else 100)
            yield Row("Cast", f"to {name}", source, (Operand(("n", EDGE_COUNT), source, fill),), apply(Cast(target)), exact=True)


def _activations() -> Iterator[Row]:
    for dtype in FLOATS:
        for kind in ActivationKind:
            layer = apply(Activation(kind, *_PARAMETERS.get(kind, (0.0, 0.0))))
            exact = kind in _EXACT_ACTIVATIONS
            absolute = 1.0 if kind in _ROUNDED_BETWEEN else 0.0
            operands = {kind.value: Operand(("n", 40), dtype, random), f"{kind.value} edges": Operand(("n", EDGE_COUNT), dtype, edges)}
            for case, operand in operands.items():
                yield Row("Activation", case, dtype, (operand,), layer, exact, absolute=absolute)
        for case, shape in (("rank 0", ()), ("rank 1", ("n",)), ("rank 8", (1, 2, 1, 2, "n", 1, 2, 2)), ("empty", (0, 3))):
            layer = apply(Activation(ActivationKind.GELU_ERF))
            yield Row("Activation", f"GELU_ERF {case}", dtype, (Operand(shape, dtype, random),), layer, absolute=1.0)


def _unary() -> Iterator[Row]:
    for dtype in FLOATS:
        for op in UnaryOp:
            if op is UnaryOp.NOT:
                continue
            operand = Operand(("n", 40), dtype, positive if op in (UnaryOp.LOG, UnaryOp.SQRT, UnaryOp.ACOSH) else random)
            yield Row("Unary", op.value, dtype, (operand,), apply(Unary(op)), op in _EXACT_UNARY)
            yield Row(
                "Unary", f"{op.value} edges", dtype, (Operand(("n", EDGE_COUNT), dtype, edges),), apply(Unary(op)), op in _EXACT_UNARY
            )
        for case, shape in (("rank 0", ()), ("rank 8", (1, 2, 1, 2, "n", 1, 2, 2)), ("empty", ("n", 0))):
            yield Row("Unary", f"NEG {case}", dtype, (Operand(shape, dtype, edges),), apply(Unary(UnaryOp.NEG)), exact=True)
    for dtype in INTEGERS:
        for op in (UnaryOp.ABS, UnaryOp.NEG, UnaryOp.SIGN):
            yield Row("Unary", op.value, dtype, (Operand(("n", EDGE_COUNT), dtype, edges),), apply(Unary(op)), exact=True)
    yield Row("Unary", "NOT", torch.bool, (Operand(("n", 8), torch.bool, random),), apply(Unary(UnaryOp.NOT)), exact=True)


def _elementwise() -> Iterator[Row]:
    for op in ElementwiseOp:
        layer = apply(Elementwise(op))
        if op in _LOGICAL or op is ElementwiseOp.EQUAL:
            pair = (Operand(("n", 8), torch.bool, random), Operand(("n", 8), torch.bool, random))
            yield Row("Elementwise", op.value, torch.bool, pair, layer, exact=True)
        if op in _LOGICAL:
            continue
        for dtype in NUMBERS:
            exact = op in _COMPARISONS or not dtype.is_floating_point or op in _EXTREMES
            fills: tuple[Fill, Fill] = (edges, divisors if op in _DIVISIONS else edges)
            if op is ElementwiseOp.POW and not dtype.is_floating_point:
                fills = (in_range(-3, 3), in_range(0, 6))
            # One operand runs down, the other across: every pair of edge values meets.
            cross = (Operand(("n", EDGE_COUNT, 1), dtype, fills[0]), Operand(("n", 1, EDGE_COUNT), dtype, fills[1]))
            if op in _EXTREMES and dtype.is_floating_point:
                yield Row("Elementwise", f"{op.value} NaN and zeros", dtype, cross, layer, exact)
                cross = (Operand(("n", EDGE_COUNT, 1), dtype, ordered), Operand(("n", 1, EDGE_COUNT), dtype, ordered))
            yield Row("Elementwise", f"{op.value} edges", dtype, cross, layer, exact)
            if op is ElementwiseOp.SUM or op is ElementwiseOp.FLOOR_DIV or op is ElementwiseOp.MAX:
                shapes = {
                    "rank 0": ((), ()),
                    "empty": (("n", 0), (1, 1)),
                    "rank 8": ((1, 2, 1, 2, "n", 1, 2, 2), (1, 2, 2, 1, 1, 1, 2, 1)),
                    "broadcast": (("n", 1, "m"), (1, "k", 1)),
                }
                for case, (left, right) in shapes.items():
                    pair = (Operand(left, dtype, positive), Operand(right, dtype, positive))
                    yield Row("Elementwise", f"{op.value} {case}", dtype, pair, layer, exact)


def _selects() -> Iterator[Row]:
    cases: dict[str, tuple[Shape, Shape, Shape]] = {
        "same": (("n", EDGE_COUNT), ("n", EDGE_COUNT), ("n", EDGE_COUNT)),
        "broadcast": (("n", 1), ("n", "m"), (1, "m")),
        "rank 0": ((), (), ()),
        "empty": (("n", 0), (1, 1), ("n", 1)),
    }
    for dtype in ALL:
        for case, shapes in cases.items():
            operands = (Operand(shapes[0], torch.bool, random), Operand(shapes[1], dtype, edges), Operand(shapes[2], dtype, edges))
            yield Row("Select", case, dtype, operands, apply(Select()), exact=True)


def _parametric_relus() -> Iterator[Row]:
    for dtype in FLOATS:
        for case, shape, slopes in (
            ("per element", ("n", EDGE_COUNT), ("n", EDGE_COUNT)),
            ("per channel", ("n", 3, "m"), (1, 3, 1)),
            ("one slope", (2, "k"), (1, 1)),
        ):
            operands = (Operand(shape, dtype, edges), Operand(slopes, dtype, positive))
            yield Row("ParametricRelu", case, dtype, operands, apply(ParametricRelu()))
