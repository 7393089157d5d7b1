"""Layers that own bodies.

TensorRT has no subnetworks: a body is the layers between the boundary layers of its loop or conditional.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from torchkiln_core import Network
from torchkiln_core.layers import IfConditional, Loop
from torchkiln_runtime.adapter.definition import Definition


class Bodies(Protocol):
    """What writes the bodies of a layer.

    Attributes:
        name: Name of the layer in the record.
        needed: Which of its outputs the network reads; ``None`` may stand for the others.
    """

    name: str
    needed: tuple[bool, ...]

    def write(self, body: Network, tensors: Sequence[Any]) -> list[Any]:
        """Writes the layers of ``body`` with ``tensors`` as its inputs, and returns its outputs."""
        ...


def if_conditional(to: Definition, layer: IfConditional, bodies: Bodies, condition: Any, *operands: Any) -> Any:
    """``IIfConditional``; every operand enters by an input layer, so that a branch that is not taken costs nothing."""
    conditional = to.network.add_if_conditional()
    conditional.name = bodies.name
    _named(conditional.set_condition(condition), bodies, "condition")
    tensors = [_named(conditional.add_input(tensor), bodies, f"input_{index}").get_output(0) for index, tensor in enumerate(operands)]
    branches = [_distinct(to, body, bodies.write(body, tensors)) for body in (layer.then, layer.otherwise)]
    return tuple(
        _named(conditional.add_output(then, otherwise), bodies, f"output_{index}").get_output(0) if needed else None
        for index, (then, otherwise, needed) in enumerate(zip(*branches, bodies.needed, strict=True))
    )


def _distinct(to: Definition, body: Network, tensors: list[Any]) -> list[Any]:
    """The outputs of a branch, with a copy for each that came before: TensorRT fails to build where one stands for two outputs."""
    seen: set[Any] = set()
    result = []
    for (_, value), tensor in zip(body.outputs, tensors, strict=True):
        result.append(to.network.add_identity(tensor).get_output(0) if value in seen else tensor)
        seen.add(value)
    return result


def loop(to: Definition, layer: Loop, bodies: Bodies, count: Any | None, length: Any | None, *operands: Any) -> Any:
    """``ILoop`` with its trip limits, recurrences, iterators and outputs."""
    initial, iterated, others = layer.split(operands)
    result = to.network.add_loop()
    result.name = bodies.name
    limit = _limit(to, count if length is None else to.reshape(length, ()))
    if limit is not None:
        _named(result.add_trip_limit(limit, to.trt.TripLimit.COUNT), bodies, "count")
    recurrences = [_named(result.add_recurrence(tensor), bodies, f"recurrence_{index}") for index, tensor in enumerate(initial)]
    iterators = [
        _named(result.add_iterator(tensor, how.axis, how.reverse), bodies, f"iterator_{index}")
        for index, (tensor, how) in enumerate(zip(iterated, layer.iterated, strict=True))
    ]
    state = [recurrence.get_output(0) for recurrence in recurrences]
    if layer.condition is not None:
        (flag,) = bodies.write(layer.condition, (*state, *others))
        _named(result.add_trip_limit(flag, to.trt.TripLimit.WHILE), bodies, "while")
    values = bodies.write(layer.body, (*state, *(iterator.get_output(0) for iterator in iterators), *others))
    for recurrence, value in zip(recurrences, values, strict=False):
        recurrence.set_input(1, value)
    kinds = [(to.trt.LoopOutput.LAST_VALUE, 0)] * len(state)
    kinds += [(getattr(to.trt.LoopOutput, how.order.value), how.axis) for how in layer.collected]
    outputs: list[Any] = []
    for value, (kind, axis), needed in zip((*state, *values[len(state) :]), kinds, bodies.needed, strict=True):
        if not needed:
            outputs.append(None)
            continue
        output = _named(result.add_loop_output(value, kind, axis), bodies, f"output_{len(outputs)}")
        if kind != to.trt.LoopOutput.LAST_VALUE:
            output.set_input(1, limit)
        outputs.append(output.get_output(0))
    return tuple(outputs)


def _limit(to: Definition, count: Any | None) -> Any | None:
    """The trip limit as int32, which a loop under a condition counts in."""
    if count is None or count.dtype == to.dtype(torch.int32):
        return count
    return to.network.add_cast(count, to.dtype(torch.int32)).get_output(0)


def _named(layer: Any, bodies: Bodies, part: str) -> Any:
    layer.name = f"{bodies.name}/{part}"
    return layer
