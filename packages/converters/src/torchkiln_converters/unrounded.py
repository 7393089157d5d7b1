"""Poolings in bfloat16 behind a convolution and a cast: they take the float32 numbers from before the cast.

Of a convolution in bfloat16, elementwise float32, a cast to bfloat16 and a pooling TensorRT-RTX 1.6 makes a kernel whose results have
nothing to do with the operands (seen on an H200; not in float16). Pooling in float32 before the cast is right. So that a maximum is still
one of the rounded numbers, layers are looked through only where it is all the same whether they or the rounding come first.
"""

from __future__ import annotations

import dataclasses

import torch

from torchkiln_converters.writing.values import cast
from torchkiln_core import ConversionError, Network, Step, Value
from torchkiln_core.layers import (
    Activation,
    ActivationKind,
    Cast,
    Concatenation,
    Convolution,
    Deconvolution,
    Elementwise,
    ElementwiseOp,
    Pooling,
    Select,
    Shuffle,
    Slice,
    Unary,
    UnaryOp,
)

_FUSED = (Activation, Concatenation, Elementwise, Select, Shuffle, Slice, Unary)
"""Layers that the library may make part of one kernel with what is before and behind them."""
_MOVES = (Concatenation, Select, Shuffle, Slice)
_COMMUTES = frozenset(
    {
        Activation(ActivationKind.RELU),
        Elementwise(ElementwiseOp.MAX),
        Elementwise(ElementwiseOp.MIN),
        Unary(UnaryOp.ABS),
        Unary(UnaryOp.NEG),
    }
)
"""Layers whose result does not depend on whether operand or result is rounded, besides those that only move numbers."""


def pool_unrounded(net: Network) -> None:
    """Rewrites a network in place, after folding: a scale that became part of a convolution leaves no cast behind.

    Raises:
        ConversionError: A pooling that cannot be rewritten; it names the call.
    """
    steps, net.steps = net.steps, []
    replaced: dict[Value, Value] = {}
    for step in steps:
        step = dataclasses.replace(step, inputs=tuple(None if value is None else replaced.get(value, value) for value in step.inputs))
        net.steps.append(step)
        source = step.inputs[0] if isinstance(step.layer, Pooling) else None
        if source is None or source.dtype is not torch.bfloat16:
            continue
        made_of = _made_of(net, source)
        if not _has_rounded_convolution(net, made_of):
            continue
        obstacle = next((item for item in made_of if not isinstance(item.layer, (Cast, *_MOVES)) and item.layer not in _COMMUTES), None)
        call = step.name.rpartition("/")[0]
        if obstacle is not None:
            raise ConversionError(
                f"pooling of bfloat16 behind a convolution, float32 and {obstacle.layer.kind()}: TensorRT-RTX computes wrong numbers",
                node=call,
                where=step.where,
                fix="pool in float32, or in float16",
            )
        with net.scope(call, step.where):
            wide = _unrounded(net, source, made_of)
            replaced[step.outputs[0]] = cast(net, net.add(step.layer, wide), torch.bfloat16)
    net.replace(replaced)


def _has_rounded_convolution(net: Network, made_of: list[Step]) -> bool:
    """Whether one of the casts rounds what comes of a convolution."""
    needed = {value for step in made_of if isinstance(step.layer, Cast) for value in step.inputs}
    for step in reversed(net.steps):
        if needed.isdisjoint(step.outputs):
            continue
        if isinstance(step.layer, (Convolution, Deconvolution)):
            return True
        if isinstance(step.layer, (Cast, Pooling, *_FUSED)):
            needed.update(step.inputs)
    return False


def _unrounded(net: Network, value: Value, made_of: list[Step]) -> Value:
    """The float32 numbers that are rounded to ``value``. Layers in bfloat16 stay for whoever else reads them."""
    wide: dict[Value, Value] = {}
    for step in reversed(made_of):
        [output] = step.outputs
        if isinstance(step.layer, Cast):
            [source] = step.inputs
            if source is not None:
                wide[output] = source
        else:
            operands = [None if operand is None else wide.get(operand, operand) for operand in step.inputs]
            wide[output] = net.add(step.layer, *(_widened(net, operand) for operand in operands))
    return wide[value]


def _widened(net: Network, operand: Value | None) -> Value | None:
    """A condition and a shape stay as they are."""
    return operand if operand is None or operand.dtype is not torch.bfloat16 else cast(net, operand, torch.float32)


def _made_of(net: Network, value: Value) -> list[Step]:
    """The layers in bfloat16 that may be fused into ``value``, last ones first, with the casts from float32 that they begin at."""
    found: list[Step] = []
    needed: set[Value | None] = {value}
    for step in reversed(net.steps):
        if needed.isdisjoint(step.outputs) or step.outputs[0].dtype is not torch.bfloat16:
            continue
        if isinstance(step.layer, _FUSED):
            needed.update(step.inputs)
        elif not (isinstance(step.layer, Cast) and step.inputs[0] is not None and step.inputs[0].dtype is torch.float32):
            continue
        found.append(step)
    return found
