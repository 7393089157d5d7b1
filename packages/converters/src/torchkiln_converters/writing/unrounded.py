"""Values in bfloat16 as they were in float32 before a cast rounded them."""

from __future__ import annotations

import torch

from torchkiln_converters.writing.values import cast
from torchkiln_core import Network, Step, Value
from torchkiln_core.layers import Activation, Cast, Elementwise, Unary


def unrounded(net: Network, value: Value) -> Value:
    """The float32 numbers that a cast rounded to ``value``, or ``value`` where there are none.

    Elementwise layers between such a cast and ``value`` are written again in float32; those in bfloat16 stay for whoever else reads them.
    """
    wide: dict[Value, Value] = {}
    for step in reversed(_made_of(net, value)):
        [output] = step.outputs
        operands = [operand for operand in step.inputs if operand is not None]
        if isinstance(step.layer, Cast):
            wide[output] = operands[0]
        elif any(operand in wide for operand in operands):
            wide[output] = net.add(step.layer, *(cast(net, wide.get(operand, operand), torch.float32) for operand in operands))
    return wide.get(value, value)


def _made_of(net: Network, value: Value) -> list[Step]:
    """The casts from float32 and the elementwise layers that ``value`` is made of, last ones first, back to other layers."""
    found: list[Step] = []
    needed: set[Value | None] = {value}
    for step in reversed(net.steps):
        if needed.isdisjoint(step.outputs) or step.outputs[0].dtype is not torch.bfloat16:
            continue
        if isinstance(step.layer, (Activation, Elementwise, Unary)):
            needed.update(step.inputs)
        elif not (isinstance(step.layer, Cast) and step.inputs[0] is not None and step.inputs[0].dtype is torch.float32):
            continue
        found.append(step)
    return found
