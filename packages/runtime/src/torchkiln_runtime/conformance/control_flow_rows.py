"""Rows of the layers that own bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from torchkiln_core import Network, Value
from torchkiln_core.layers import (
    Activation,
    ActivationKind,
    Collected,
    Elementwise,
    ElementwiseOp,
    IfConditional,
    Iterated,
    Loop,
    LoopOutput,
    MatrixMultiply,
    Reduce,
    ReduceOp,
    Shuffle,
    Unary,
    UnaryOp,
    operand_input,
    recurrence_input,
    slice_input,
)
from torchkiln_core.size import Size
from torchkiln_runtime.conformance.fills import positive, random
from torchkiln_runtime.conformance.row import ALL, FLOATS, INTEGERS, NUMBERS, Fill, Operand, Row

Body = Callable[..., Value | tuple[Value, ...]]
"""Writes a body: ``write(body, *inputs)`` returns its outputs."""


def control_flow_rows() -> Iterator[Row]:
    """Conditionals, loops, and one in the other."""
    for dtype in ALL:
        yield from _conditionals(dtype)
        yield from _recurrences(dtype)
        yield from _collections(dtype)
    for dtype in NUMBERS:
        yield from _conditions(dtype)
        yield from _nests(dtype)
    for dtype in INTEGERS:
        yield from _counts(dtype)
    for dtype in FLOATS:
        yield from _cells(dtype)


def holding(value: float) -> Fill:
    """One value everywhere."""

    def fill(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
        return torch.full(shape, value).to(dtype)

    return fill


def _fill(body: Network, write: Body, inputs: Sequence[Value]) -> Network:
    results = write(body, *inputs)
    for index, value in enumerate(results if isinstance(results, tuple) else (results,)):
        body.output(f"out_{index}", value)
    return body


def branch(net: Network, condition: Value, operands: Sequence[Value], then: Body, otherwise: Body) -> tuple[Value, ...]:
    """A conditional whose branches take ``operands``."""
    bodies = []
    for name, write in (("then", then), ("otherwise", otherwise)):
        body = net.body(name)
        bodies.append(_fill(body, write, [operand_input(body, f"operand_{index}", value) for index, value in enumerate(operands)]))
    return net.add_many(IfConditional(*bodies), condition, *operands)


@dataclass(frozen=True, slots=True)
class Trips:
    """What ends a loop: a count as a value, or as a size, and a condition."""

    count: Value | None = None
    size: Size | None = None
    until: Body | None = None


def repeat(net: Network, trips: Trips, initial: Sequence[Value], others: Sequence[Value], write: Body) -> tuple[Value, ...]:
    """A loop over recurrences; its bodies take them and ``others``."""

    def body_of(name: str, part: Body) -> Network:
        body = net.body(name)
        states = [recurrence_input(body, f"state_{index}", value) for index, value in enumerate(initial)]
        return _fill(body, part, (*states, *(operand_input(body, f"operand_{index}", value) for index, value in enumerate(others))))

    condition = None if trips.until is None else body_of("condition", trips.until)
    length = None if trips.size is None else net.size_tensor((trips.size,))
    return net.add_many(Loop(body_of("body", write), condition), trips.count, length, *initial, *others)


def scan(
    net: Network, iterated: tuple[Iterated, ...], collected: tuple[Collected, ...], values: Sequence[Value], write: Body
) -> tuple[Value, ...]:
    """A loop over slices: the first values are iterated, the others are initial values of recurrences."""
    body = net.body("body")
    slices = [
        slice_input(body, f"slice_{index}", value, how.axis) for index, (value, how) in enumerate(zip(values, iterated, strict=False))
    ]
    tensors, initial = values[: len(iterated)], values[len(iterated) :]
    states = [recurrence_input(body, f"state_{index}", value) for index, value in enumerate(initial)]
    body.inputs[:] = (*states, *slices)
    _fill(body, write, body.inputs)
    length = net.size_tensor((tensors[0].shape[iterated[0].axis],))
    return net.add_many(Loop(body, None, iterated, collected), None, length, *initial, *tensors)


def plus(net: Network, left: Value, right: Value) -> Value:
    """A sum; of bools, an exclusive or."""
    return net.add(Elementwise(ElementwiseOp.XOR if left.dtype is torch.bool else ElementwiseOp.SUM), left, right)


def _both(net: Network, left: Value, right: Value) -> Value:
    return net.add(Elementwise(ElementwiseOp.AND if left.dtype is torch.bool else ElementwiseOp.MAX), left, right)


def _scalar(net: Network, value: float, dtype: torch.dtype, rank: int = 0) -> Value:
    return net.constant(torch.full((1,) * rank, value, dtype=dtype))


def _less(net: Network, value: Value, bound: float) -> Value:
    """Whether the sum of all elements is less than ``bound``."""
    total = value if value.rank == 0 else net.add(Reduce(ReduceOp.SUM, tuple(range(value.rank)), keep_dims=False), value)
    return net.add(Elementwise(ElementwiseOp.LESS), total, _scalar(net, bound, value.dtype))


def _conditionals(dtype: torch.dtype) -> Iterator[Row]:
    """The condition is an input."""

    def plain(body: Network, x: Value, y: Value) -> tuple[Value, ...]:
        return plus(body, x, y), _both(body, x, y)

    def swapped(body: Network, x: Value, y: Value) -> tuple[Value, ...]:
        return _both(body, x, y), plus(body, x, y)

    def passed(body: Network, x: Value, y: Value) -> tuple[Value, ...]:
        return x, y, x

    def repeated(body: Network, x: Value, y: Value) -> tuple[Value, ...]:
        total = plus(body, x, y)
        return total, total, y

    def held(body: Network, x: Value, y: Value) -> tuple[Value, ...]:
        return (body.constant(torch.ones(2, 3, dtype=dtype)),)

    def other(body: Network, x: Value, y: Value) -> tuple[Value, ...]:
        return (body.constant(torch.zeros(2, 3, dtype=dtype)),)

    for case, then, otherwise, shape in (
        ("plain", plain, swapped, ("n", 3)),
        ("0-d", plain, swapped, ()),
        ("empty", plain, swapped, (0, 3)),
        ("passed on", passed, repeated, ("n", "m")),
        ("only passed on", passed, passed, ("n", "m")),
        ("constants", held, other, ("n",)),
    ):
        for taken in (True, False):

            def write(net: Network, p: Value, x: Value, y: Value, then: Body = then, otherwise: Body = otherwise) -> tuple[Value, ...]:
                return branch(net, p, (x, y), then, otherwise)

            operands = (Operand((), torch.bool, holding(taken)), Operand(shape, dtype, random), Operand(shape, dtype, random))
            yield Row("IfConditional", f"{case} {'then' if taken else 'otherwise'}", dtype, operands, write, exact=True)


def _conditions(dtype: torch.dtype) -> Iterator[Row]:
    """The condition, or a shape in a branch, is computed."""

    def computed(net: Network, x: Value) -> tuple[Value, ...]:
        return branch(net, _less(net, x, 5), (x,), lambda body, x: plus(body, x, x), lambda body, x: body.add(Unary(UnaryOp.NEG), x))

    for case, fill in (("less", holding(-1)), ("more", holding(8))):
        yield Row("IfConditional", f"computed {case}", dtype, (Operand(("n", 3), dtype, fill),), computed, exact=True)

    def shaped(net: Network, p: Value, x: Value) -> tuple[Value, ...]:
        flat = net.size_tensor((x.shape[0] * 6,))

        def then(body: Network, x: Value, flat: Value) -> Value:
            return body.add(Shuffle(), body.add(Shuffle(first=(1, 0)), x), flat)

        def otherwise(body: Network, x: Value, flat: Value) -> Value:
            return body.add(Shuffle(), x, body.size_tensor((x.shape[0] * 6,)))

        return branch(net, p, (x, flat), then, otherwise)

    for taken in (True, False):
        operands = (Operand((), torch.bool, holding(taken)), Operand(("n", 6), dtype, random))
        yield Row("IfConditional", f"sizes {'then' if taken else 'otherwise'}", dtype, operands, shaped, exact=True)


def _recurrences(dtype: torch.dtype) -> Iterator[Row]:
    """Counts known when the engine is built, and loops over a size."""

    def turned(body: Network, x: Value, y: Value, z: Value) -> tuple[Value, ...]:
        return y, z, plus(body, x, y)

    for case, size, shape in (
        ("several", 5, ("n", 3)),
        ("once", 1, ("n", 3)),
        ("no trip", 0, ("n", 3)),
        ("0-d", 3, ()),
        ("empty", 3, (0, 3)),
    ):

        def write(net: Network, *values: Value, size: int = size) -> tuple[Value, ...]:
            return repeat(net, Trips(size=size), values, (), turned)

        operands = tuple(Operand(shape, dtype, random) for _ in range(3))
        yield Row("Loop", f"count {case}", dtype, operands, write, exact=True)

    def sized(net: Network, x: Value, y: Value) -> tuple[Value, ...]:
        return repeat(net, Trips(size=x.shape[0]), (x, y), (x,), lambda body, x, y, given: (y, plus(body, x, given)))

    yield Row("Loop", "count of a size", dtype, tuple(Operand(("n", "m"), dtype, random) for _ in range(2)), sized, exact=True)

    def constant(net: Network, x: Value) -> tuple[Value, ...]:
        return repeat(net, Trips(size=2), (x,), (), lambda body, x: body.constant(torch.ones(2, 3, dtype=dtype)))

    yield Row("Loop", "constant recurrence", dtype, (Operand((2, 3), dtype, random),), constant, exact=True)


def _counts(dtype: torch.dtype) -> Iterator[Row]:
    """Counts and conditions that depend on data; the dtype is that of the count."""

    def counted(net: Network, count: Value, x: Value) -> tuple[Value, ...]:
        return repeat(net, Trips(count=count), (x,), (x,), plus)

    for count in (0, 1, 6, -2):
        operands = (Operand((), dtype, holding(count)), Operand(("n", 3), torch.float32, random))
        yield Row("Loop", f"computed count {count}", dtype, operands, counted, relaxed=4)

    def step(body: Network, index: Value, x: Value, bound: Value) -> tuple[Value, ...]:
        return plus(body, index, _scalar(body, 1, dtype)), plus(body, x, x)

    def until(body: Network, index: Value, x: Value, bound: Value) -> Value:
        return body.add(Elementwise(ElementwiseOp.LESS), index, bound)

    for limited in (None, 3):

        def conditional(net: Network, start: Value, bound: Value, x: Value, size: int | None = limited) -> tuple[Value, ...]:
            return repeat(net, Trips(size=size, until=until), (start, x), (bound,), step)

        for bound in (0, 2, 6):
            given = (Operand((), dtype, holding(0)), Operand((), dtype, holding(bound)), Operand(("n", 3), torch.float32, random))
            case = f"while below {bound}" if limited is None else f"while below {bound} and {limited} times"
            yield Row("Loop", case, dtype, given, conditional, exact=True)


def _collections(dtype: torch.dtype) -> Iterator[Row]:
    """Loops over the slices of a tensor."""
    forward, reverse = LoopOutput.CONCATENATE, LoopOutput.REVERSE

    def running(body: Network, total: Value, x: Value) -> tuple[Value, ...]:
        total = plus(body, total, x)
        return total, total, x

    for case, iterated, outs in (
        ("forward", Iterated(0), (Collected(forward, 0), Collected(reverse, 0))),
        ("backward", Iterated(0, reverse=True), (Collected(reverse, 0), Collected(forward, 1))),
        ("other axes", Iterated(1), (Collected(forward, 1), Collected(reverse, 1))),
        ("other axes backward", Iterated(1, reverse=True), (Collected(reverse, 1), Collected(forward, 0))),
    ):

        def write(
            net: Network, x: Value, initial: Value, iterated: Iterated = iterated, outs: tuple[Collected, ...] = outs
        ) -> tuple[Value, ...]:
            return scan(net, (iterated,), outs, (x, initial), running)

        operands = (Operand(("n", "m"), dtype, random), Operand(("n" if iterated.axis else "m",), dtype, random))
        yield Row("Loop", f"scan {case}", dtype, operands, write, exact=not dtype.is_floating_point, relaxed=4)

    def pairs(net: Network, x: Value, y: Value) -> tuple[Value, ...]:
        iterated = (Iterated(0), Iterated(1, reverse=True))
        return scan(net, iterated, (Collected(forward, 2),), (x, y), lambda body, x, y: (plus(body, x, y),))

    operands = (Operand(("k", "n", 2), dtype, random), Operand(("n", "k", 2), dtype, random))
    yield Row("Loop", "map", dtype, operands, pairs, exact=True)

    def nothing(net: Network, x: Value, initial: Value) -> tuple[Value, ...]:
        return scan(net, (Iterated(0),), (Collected(forward, 0), Collected(reverse, 1)), (x, initial), running)

    operands = (Operand((0, "m"), dtype, random), Operand(("m",), dtype, random))
    yield Row("Loop", "scan of nothing", dtype, operands, nothing, exact=True)


def _nests(dtype: torch.dtype) -> Iterator[Row]:
    """Bodies in bodies."""

    def conditional_in_loop(net: Network, x: Value) -> tuple[Value, ...]:
        def body(body: Network, x: Value, given: Value) -> tuple[Value, ...]:
            return branch(body, _less(body, x, 10), (x, given), plus, lambda body, x, given: body.add(Unary(UnaryOp.NEG), x))

        return repeat(net, Trips(size=6), (x,), (x,), body)

    yield Row("Loop", "conditional inside", dtype, (Operand(("n", 2), dtype, positive),), conditional_in_loop, relaxed=4)

    def loop_in_conditional(net: Network, x: Value) -> tuple[Value, ...]:
        def then(body: Network, x: Value) -> tuple[Value, ...]:
            return repeat(body, Trips(size=3), (x,), (x,), plus)

        return branch(net, _less(net, x, 40), (x,), then, lambda body, x: body.add(Unary(UnaryOp.NEG), x))

    yield Row("IfConditional", "loop inside", dtype, (Operand(("n", 2), dtype, positive),), loop_in_conditional, relaxed=4)

    def loop_in_loop(net: Network, x: Value, y: Value) -> tuple[Value, ...]:
        def body(body: Network, x: Value, y: Value) -> tuple[Value, ...]:
            (z,) = repeat(body, Trips(size=x.shape[0]), (x,), (y,), plus)
            return z, body.add(Unary(UnaryOp.NEG), y)

        return repeat(net, Trips(size=3), (x, y), (), body)

    operands = (Operand(("n", 2), dtype, positive), Operand(("n", 2), dtype, positive))
    yield Row("Loop", "loop inside", dtype, operands, loop_in_loop, relaxed=4)

    def conditional_in_conditional(net: Network, x: Value) -> tuple[Value, ...]:
        def then(body: Network, x: Value) -> tuple[Value, ...]:
            return branch(body, _less(body, x, 20), (x,), lambda body, x: plus(body, x, x), lambda body, x: x)

        return branch(net, _less(net, x, 40), (x,), then, lambda body, x: body.add(Unary(UnaryOp.NEG), x))

    yield Row("IfConditional", "conditional inside", dtype, (Operand(("n", 2), dtype, positive),), conditional_in_conditional, exact=True)


def _cells(dtype: torch.dtype) -> Iterator[Row]:
    """A recurrent cell with weights, as sequence models have it."""
    generator = torch.Generator().manual_seed(3)
    inner, outer = (random((4, 4), dtype, generator) / 4 for _ in range(2))

    def cell(body: Network, hidden: Value, x: Value) -> tuple[Value, ...]:
        parts = [body.add(MatrixMultiply(), value, body.constant(weight)) for value, weight in ((hidden, inner), (x, outer))]
        hidden = body.add(Activation(ActivationKind.TANH), plus(body, *parts))
        return hidden, hidden

    def write(net: Network, x: Value, hidden: Value) -> tuple[Value, ...]:
        return scan(net, (Iterated(1),), (Collected(LoopOutput.CONCATENATE, 1),), (x, hidden), cell)

    operands = (Operand(("n", "k", 4), dtype, random), Operand(("n", 4), dtype, random))
    yield Row("Loop", "recurrent cell", dtype, operands, write, relaxed=16, absolute=4)
