"""Networks with conditionals and loops that the tests share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from torchkiln_core import Network, Value
from torchkiln_core.layers import (
    Collected,
    Elementwise,
    ElementwiseOp,
    IfConditional,
    Iterated,
    Loop,
    LoopOutput,
    Reduce,
    ReduceOp,
    Unary,
    UnaryOp,
    operand_input,
    recurrence_input,
    slice_input,
)

Body = Callable[..., "Value | tuple[Value, ...]"]
NEG = Unary(UnaryOp.NEG)
F32, I64 = torch.float32, torch.int64


def ew(net: Network, op: str, left: Value, right: Value) -> Value:
    return net.add(Elementwise(ElementwiseOp[op]), left, right)


def finish(body: Network, results: Value | tuple[Value, ...]) -> Network:
    for index, value in enumerate(results if isinstance(results, tuple) else (results,)):
        body.output(f"out_{index}", value)
    return body


def branches(net: Network, operands: Sequence[Value], then: Body, otherwise: Body) -> IfConditional:
    bodies = []
    for name, write in (("then", then), ("otherwise", otherwise)):
        body = net.body(name)
        bodies.append(finish(body, write(body, *(operand_input(body, "x", value) for value in operands))))
    return IfConditional(*bodies)


def branch(net: Network, condition: Value, operands: Sequence[Value], then: Body, otherwise: Body) -> tuple[Value, ...]:
    return net.add_many(branches(net, operands, then, otherwise), condition, *operands)


def looped(net: Network, initial: Sequence[Value], others: Sequence[Value], write: Body, until: Body | None = None) -> Loop:
    bodies = []
    for name, part in (("body", write), ("condition", until)):
        if part is not None:
            body = net.body(name)
            values = [recurrence_input(body, "s", value) for value in initial] + [operand_input(body, "x", value) for value in others]
            bodies.append(finish(body, part(body, *values)))
    return Loop(*bodies)


def scanned(
    net: Network,
    initial: Sequence[Value],
    tensors: Sequence[Value],
    iterated: Sequence[Iterated],
    collected: Sequence[Collected],
    write: Body,
    others: Sequence[Value] = (),
) -> tuple[Value, ...]:
    body = net.body("body")
    states = [recurrence_input(body, "s", value) for value in initial]
    slices = [slice_input(body, "x", value, how.axis) for value, how in zip(tensors, iterated, strict=True)]
    fixed = [operand_input(body, "o", value) for value in others]
    finish(body, write(body, *states, *slices, *fixed))
    length = net.size_tensor((tensors[0].shape[iterated[0].axis],))
    return net.add_many(Loop(body, None, tuple(iterated), tuple(collected)), None, length, *initial, *tensors, *others)


def total(net: Network, value: Value) -> Value:
    return net.add(Reduce(ReduceOp.SUM, tuple(range(value.rank)), keep_dims=False), value)


def scalar(net: Network, value: float, dtype: torch.dtype = I64) -> Value:
    return net.constant(torch.tensor(value, dtype=dtype))


def cumulative(net: Network, x: Value, initial: Value) -> tuple[Value, ...]:
    """The last sum, the running sums, and the slices in reverse."""

    def write(body: Network, state: Value, row: Value) -> tuple[Value, ...]:
        state = ew(body, "SUM", state, row)
        return state, state, row

    collected = (Collected(LoopOutput.CONCATENATE, 0), Collected(LoopOutput.REVERSE, 1))
    return scanned(net, (initial,), (x,), (Iterated(0),), collected, write)


def nested(weight: torch.Tensor, op: str = "SUM", label: str = "x", limit: float = 10.0) -> Network:
    """A conditional with a weight inside a loop of four trips: adds while the sum is below the limit, else negates."""
    net = Network()
    x = net.input(label, F32, (2, 3))

    def body(body: Network, state: Value, given: Value) -> tuple[Value, ...]:
        def then(inner: Network, state: Value, given: Value) -> Value:
            return ew(inner, op, state, ew(inner, "PROD", given, inner.constant(weight, "w")))

        condition = ew(body, "LESS", total(body, state), scalar(body, limit, F32))
        return branch(body, condition, (state, given), then, lambda inner, state, given: inner.add(NEG, state))

    with net.scope(f"{label}_loop", f"{label}.py:7"):
        (result,) = net.add_many(looped(net, (x,), (x,), body), None, net.size_tensor((4,)), x, x)
    net.output(f"{label}_out", result)
    return net
