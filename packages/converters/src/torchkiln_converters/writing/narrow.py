"""Numbers of one byte: what layers take them from and give them to.

TensorRT takes uint8 as an input or output of an engine only, behind or before a cast, and a constant of one byte only before a
``Dequantize`` layer. So what reads such a value reads the wider one that it was cast from, or dequantizes it with a scale of 1.
"""

from __future__ import annotations

import torch

from torchkiln_converters.support import BYTES, FP8
from torchkiln_converters.writing.shapes import reshape
from torchkiln_converters.writing.values import add, cast, elementwise, mul, number, sub
from torchkiln_core import ConstantValues, Network, Step, Value
from torchkiln_core.layers import Cast, Constant, Dequantize, ElementwiseOp, Shuffle


def widened(net: Network, value: Value, dtype: torch.dtype = torch.float32) -> Value:
    """A value ``[*]`` of one byte as ``dtype``, which holds all of its numbers."""
    step = _producer(net, value)
    layer = None if step is None else step.layer
    if step is not None and isinstance(layer, Cast) and step.inputs[0] is not None and value.dtype is torch.uint8:
        return cast(net, step.inputs[0], dtype)
    if step is not None and isinstance(layer, Shuffle) and step.inputs[0] is not None and _is_constant(net, step.inputs[0]):
        return net.add(layer, widened(net, step.inputs[0], dtype), *step.inputs[1:])
    if value.constant is not None and value.dtype is torch.uint8:
        return net.constant(value.constant.to(dtype))
    if value.constant is not None or value.dtype in FP8:
        return cast(net, _dequantized(net, value), dtype)
    return net.add(Cast(dtype), value)


def narrowed(net: Network, value: Value, dtype: torch.dtype) -> Value:
    """Any numbers ``[*]`` as integers of one byte: floats lose their fractions, integers all but their last byte, as in PyTorch."""
    if value.dtype in BYTES:
        value = widened(net, value, torch.int32)
    if value.dtype not in (torch.int32, torch.int64):
        value = cast(net, value, torch.int32)
    return net.add(Cast(dtype), cast(net, _last_byte(net, value, dtype), torch.int32))


def _last_byte(net: Network, value: Value, dtype: torch.dtype) -> Value:
    """Integers modulo 256, in the range of ``dtype``."""
    count, offset = (number(net, item, value.dtype, value.rank) for item in (256, -torch.iinfo(dtype).min))
    moved = add(net, value, offset) if dtype is torch.int8 else value
    rest = sub(net, moved, mul(net, elementwise(net, ElementwiseOp.FLOOR_DIV, moved, count), count))
    return sub(net, rest, offset) if dtype is torch.int8 else rest


def is_scalable(net: Network, value: Value, scale: Value) -> bool:
    """Whether a ``Dequantize`` layer takes the value as it is: int8 with a dimension, no constant behind layers that move it.

    Of computed scales per channel TensorRT-RTX 1.6 builds engines that multiply by other ones (seen on an H200), so of none is it asked.
    """
    moved = value.constant is None and _is_constant(net, value)
    return value.dtype is torch.int8 and value.rank > 0 and not moved and ConstantValues(net).knows(scale)


def _dequantized(net: Network, value: Value) -> Value:
    """``value`` ``[*]`` times 1 in float32; the layer wants a dimension."""
    one = number(net, 1, torch.float32)
    if value.rank:
        return net.add(Dequantize(torch.float32), value, one)
    flat = reshape(net, value, (1,)) if value.constant is None else net.constant(value.constant.reshape(1))
    return reshape(net, net.add(Dequantize(torch.float32), flat, one), ())


def _is_constant(net: Network, value: Value) -> bool:
    """Whether a value is a constant, seen in any order and shape."""
    step = _producer(net, value)
    if step is None or value.constant is not None:
        return value.constant is not None
    return isinstance(step.layer, Constant) or (isinstance(step.layer, Shuffle) and _is_constant(net, step.inputs[0] or value))


def _producer(net: Network, value: Value) -> Step | None:
    """The step that makes a value; ``None`` for an input of the network."""
    return next((step for step in reversed(net.steps) if value in step.outputs), None)
