"""Rows of random numbers: no engine draws those of another, so the rows compare whether the numbers have the distribution."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from torchkiln_core import Network, Value
from torchkiln_core.layers import (
    Cast,
    Elementwise,
    ElementwiseOp,
    RandomNormal,
    RandomUniform,
    Reduce,
    ReduceOp,
    Shape,
    Unary,
    UnaryOp,
)
from torchkiln_runtime.conformance.fills import random
from torchkiln_runtime.conformance.row import Operand, Row

_COUNT = 2048
"""Numbers in a row of a sample."""
_ERRORS = 7.0
"""Standard errors that a mean may be off by."""


def random_rows() -> Iterator[Row]:
    """Distribution, shape and rank of random numbers."""
    for dtype in (torch.float32, torch.float16):
        for low, high in ((0.0, 1.0), (-1.5, 2.5)):
            uniform, deviation = RandomUniform(low, high, dtype), (high - low) / 12**0.5
            yield _row(uniform, f"from {low} to {high}", (low + high) / 2, deviation, (low, high))
        for mean, deviation in ((0.0, 1.0), (0.5, 2.0)):
            yield _row(
                RandomNormal(mean, deviation, dtype),
                f"around {mean} by {deviation}",
                mean,
                deviation,
                (mean - 8 * deviation, mean + 8 * deviation),
            )
        for layer in (RandomUniform(-1.0, 1.0, dtype), RandomNormal(0.0, 1.0, dtype)):

            def shapes(net: Network, data: Value, layer: RandomUniform | RandomNormal = layer) -> tuple[Value, ...]:
                sizes = ((data.shape[0],), (2, data.shape[0], data.shape[1]), (data.shape[0], 0), (1, 2, 1, 2, 1, 2, 1, data.shape[0]))
                return tuple(net.add(Shape(), net.add(layer, net.size_tensor(size))) for size in sizes)

            yield Row(layer.kind(), "shapes", dtype, (Operand(("n", "m"), torch.float32, random),), shapes, exact=True)


def _row(layer: RandomUniform | RandomNormal, case: str, mean: float, deviation: float, bounds: tuple[float, float]) -> Row:
    def write(net: Network, data: Value) -> tuple[Value, ...]:
        numbers = net.add(Cast(torch.float32), net.add(layer, net.size_tensor((data.shape[0], _COUNT))))
        centred = net.add(Elementwise(ElementwiseOp.SUB), numbers, _constant(net, mean))
        squares = net.add(Elementwise(ElementwiseOp.PROD), centred, centred)
        # The fourth moment of either distribution is at most 3 times the squared variance.
        variance_error = _ERRORS * deviation**2 * (2 / _COUNT) ** 0.5
        return (
            _is_below(net, ReduceOp.MAX, numbers, bounds[1] + 1e-3),
            _is_below(net, ReduceOp.MAX, net.add(Unary(UnaryOp.NEG), numbers), 1e-3 - bounds[0]),
            _is_below(net, ReduceOp.AVG, centred, _ERRORS * deviation / _COUNT**0.5),
            _is_below(net, ReduceOp.AVG, net.add(Unary(UnaryOp.NEG), centred), _ERRORS * deviation / _COUNT**0.5),
            _is_below(net, ReduceOp.AVG, squares, deviation**2 + variance_error),
            _is_below(net, ReduceOp.AVG, net.add(Unary(UnaryOp.NEG), squares), variance_error - deviation**2),
        )

    return Row(layer.kind(), case, layer.dtype, (Operand(("n",), torch.float32, random),), write, exact=True)


def _is_below(net: Network, op: ReduceOp, numbers: Value, bound: float) -> Value:
    """Whether a reduction of each row ``[n, count]`` is below ``bound``, ``[n, 1]``."""
    return net.add(Elementwise(ElementwiseOp.LESS), net.add(Reduce(op, (1,), True), numbers), _constant(net, bound))


def _constant(net: Network, value: float) -> Value:
    return net.constant(torch.tensor([[value]]))
