"""Poolings in bfloat16 of numbers that a cast has rounded: they take the float32 numbers from before the cast.

Of a convolution in bfloat16, elementwise float32, a cast to bfloat16 and a pooling TensorRT-RTX 1.6 makes a kernel whose results have
nothing to do with the operands (seen on an H200; not in float16). Pooling before the cast is right, and rounds less often.
"""

from __future__ import annotations

import dataclasses

import torch

from torchkiln_converters.writing.values import cast
from torchkiln_core import Network, Step, Value
from torchkiln_core.layers import Activation, Cast, Concatenation, Elementwise, Pooling, Select, Shuffle, Slice, Unary

_LOOKED_THROUGH = (Activation, Concatenation, Elementwise, Select, Shuffle, Slice, Unary)


def pool_unrounded(net: Network) -> None:
    """Rewrites a network in place, after folding: a scale that became part of a convolution leaves no cast behind."""
    steps, net.steps = net.steps, []
    replaced: dict[Value, Value] = {}
    for step in steps:
        step = dataclasses.replace(step, inputs=tuple(None if value is None else replaced.get(value, value) for value in step.inputs))
        net.steps.append(step)
        source = step.inputs[0] if isinstance(step.layer, Pooling) else None
        if source is not None and source.dtype is torch.bfloat16:
            with net.scope(step.name.rpartition("/")[0], step.where):
                wide = _unrounded(net, source)
                if wide is not source:
                    replaced[step.outputs[0]] = cast(net, net.add(step.layer, wide), torch.bfloat16)
    net.replace(replaced)


def _unrounded(net: Network, value: Value) -> Value:
    """The float32 numbers that a cast rounded to ``value``, or ``value`` where there are none.

    Layers between such a cast and ``value`` are written again in float32; those in bfloat16 stay for whoever else reads them.
    """
    wide: dict[Value, Value] = {}
    for step in reversed(_made_of(net, value)):
        [output] = step.outputs
        if isinstance(step.layer, Cast):
            [source] = step.inputs
            if source is not None:
                wide[output] = source
        elif any(operand in wide for operand in step.inputs if operand is not None):
            operands = [None if operand is None else wide.get(operand, operand) for operand in step.inputs]
            wide[output] = net.add(step.layer, *(_widened(net, operand) for operand in operands))
    return wide.get(value, value)


def _widened(net: Network, operand: Value | None) -> Value | None:
    """A condition and a shape stay as they are."""
    return operand if operand is None or operand.dtype is not torch.bfloat16 else cast(net, operand, torch.float32)


def _made_of(net: Network, value: Value) -> list[Step]:
    """The casts from float32 and the layers looked through that ``value`` is made of, last ones first."""
    found: list[Step] = []
    needed: set[Value | None] = {value}
    for step in reversed(net.steps):
        if needed.isdisjoint(step.outputs) or step.outputs[0].dtype is not torch.bfloat16:
            continue
        if isinstance(step.layer, _LOOKED_THROUGH):
            needed.update(step.inputs)
        elif not (isinstance(step.layer, Cast) and step.inputs[0] is not None and step.inputs[0].dtype is torch.float32):
            continue
        found.append(step)
    return found
