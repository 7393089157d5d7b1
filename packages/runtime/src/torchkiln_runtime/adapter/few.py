"""Layers that combine a few elements, kept out of the kernels of what follows.

Where the result of such a layer meets the elements that it combined, and a reduction over another axis follows, TensorRT-RTX 1.6 makes one
kernel of all three, which computes wrong numbers: of ``(x - x.mean(1, keepdim=True)).sum()`` for ``x`` of ``[N, 2]`` to ``[N, 4]``, of a
softmax, a norm or a product with a narrow matrix up to ``[N, 6]`` (static shapes, all dtypes, seen on an H200). Perhaps it sums them as
slices: see ``parts``. A selection on the way of what was combined keeps it from that, as long as its rank has not changed before; a reshape
or slices in place of the reduction do not. Right without it were maxima that keep their rank, group norms, ``IEinsumLayer``, convolutions,
and everything in dynamic shapes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from torchkiln_core.layers import Normalization
from torchkiln_runtime.adapter.definition import Definition, mask

_MOST = 8


def are_few(count: int) -> bool:
    """Whether so many elements are combined, and more than one."""
    return 1 < count <= _MOST


def along(tensor: Any, axes: Sequence[int]) -> bool:
    """Whether a layer over these axes of a tensor of fixed shape combines a few elements."""
    sizes = tuple(tensor.shape)
    return -1 not in sizes and are_few(math.prod(sizes[axis] for axis in axes))


def floats_along(to: Definition, tensor: Any, axes: Sequence[int]) -> bool:
    """The same of floating numbers."""
    return to.library.torch_dtype(tensor.dtype).is_floating_point and along(tensor, axes)


def apart(to: Definition, tensor: Any) -> Any:
    """``tensor``, behind a selection that always takes it."""
    dtype = to.library.torch_dtype(tensor.dtype)
    if dtype in (torch.bool, torch.int8):
        # TensorRT does not compare conditions, and takes no constant of int8 that nothing dequantizes.
        return to.cast(apart(to, to.cast(tensor, to.dtype(torch.int32))), tensor.dtype)
    least = float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min
    bound = to.constant(torch.full((1,) * len(tuple(tensor.shape)), least, dtype=dtype))
    return to.network.add_select(to.elementwise("GREATER", bound, tensor), bound, tensor).get_output(0)


def without(to: Definition, tensor: Any, axes: Sequence[int]) -> Any:
    """``tensor`` without these axes, of size 1; what ``apart`` does would not hold behind it."""
    return to.reshape(tensor, [size for axis, size in enumerate(tuple(tensor.shape)) if axis not in axes])


def softmax(to: Definition, tensor: Any, axis: int) -> Any:
    """``ISoftMaxLayer`` in smaller layers, in float32."""
    wide = to.cast(tensor, to.dtype(torch.float32))
    powers = to.network.add_unary(to.elementwise("SUB", wide, _reduced(to, "MAX", wide, (axis,))), to.trt.UnaryOperation.EXP).get_output(0)
    return to.cast(to.elementwise("DIV", powers, _reduced(to, "SUM", powers, (axis,))), tensor.dtype)


def normalization(to: Definition, layer: Normalization, input: Any, scale: Any, bias: Any) -> Any:
    """``INormalizationLayer`` without groups in smaller layers, in float32."""
    wide, scale, bias = (to.cast(item, to.dtype(torch.float32)) for item in (input, scale, bias))
    centred = to.elementwise("SUB", wide, _reduced(to, "AVG", wide, layer.axes))
    variance = _reduced(to, "AVG", to.elementwise("PROD", centred, centred), layer.axes)
    epsilon = to.constant(torch.full((1,) * len(tuple(input.shape)), layer.epsilon))
    deviation = to.network.add_unary(to.elementwise("SUM", variance, epsilon), to.trt.UnaryOperation.SQRT).get_output(0)
    scaled = to.elementwise("PROD", to.elementwise("DIV", centred, deviation), scale)
    return to.cast(to.elementwise("SUM", scaled, bias), input.dtype)


def _reduced(to: Definition, op: str, tensor: Any, axes: Sequence[int]) -> Any:
    return apart(to, to.network.add_reduce(tensor, getattr(to.trt.ReduceOperation, op), mask(axes), True).get_output(0))
