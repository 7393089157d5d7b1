"""Conditions that a constant decides, such as ``x | True``, made of the other operand all the same.

Of a condition that TensorRT-RTX 1.6 knows beforehand to be one value everywhere it leaves the last elements unwritten (static shapes, seen
on an H200), so it must not know.
"""

from __future__ import annotations

from torchkiln_core import ConstantValues, Network, Step, Value
from torchkiln_core.layers import Elementwise, ElementwiseOp, Unary, UnaryOp

_OPPOSITE = {ElementwiseOp.OR: ElementwiseOp.AND, ElementwiseOp.AND: ElementwiseOp.OR}


def write_decided(net: Network) -> None:
    """Rewrites ``OR`` with what is true everywhere, and ``AND`` with what is false everywhere, in place."""
    known = ConstantValues(net)
    operands = {step.outputs[0]: found for step in net.steps if (found := _decided(step, known)) is not None}
    if not operands:
        return
    steps, net.steps = net.steps, []
    replaced: dict[Value, Value] = {}
    for step in steps:
        if step.outputs[0] not in operands:
            net.steps.append(step)
            continue
        op, value, constant = operands[step.outputs[0]]
        with net.scope(step.name.rpartition("/")[0], step.where):
            same = net.add(Elementwise(op), value, net.add(Unary(UnaryOp.NOT), value))
            replaced[step.outputs[0]] = net.add(Elementwise(_OPPOSITE[op]), same, constant)
    net.replace(replaced)


def _decided(step: Step, known: ConstantValues) -> tuple[ElementwiseOp, Value, Value] | None:
    """The operation, the operand that does not matter and the constant one that decides."""
    if not isinstance(step.layer, Elementwise) or step.layer.op not in _OPPOSITE:
        return None
    first, second = step.inputs
    for value, constant in ((first, second), (second, first)):
        if value is None or constant is None or known.knows(value):
            continue
        contents = known.tensor(constant)
        if contents is not None and bool((contents == (step.layer.op is ElementwiseOp.OR)).all()):
            return step.layer.op, value, constant
    return None
