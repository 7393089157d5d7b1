"""Layers that combine the elements along axes."""

from __future__ import annotations

from typing import Any

import torch

from torchkiln_core import BuildError
from torchkiln_core.layers import Cumulative, Normalization, Reduce, Softmax, TopK
from torchkiln_runtime.adapter import few
from torchkiln_runtime.adapter.definition import Definition, mask


def reduce(to: Definition, layer: Reduce, input: Any) -> Any:
    """``IReduceLayer``, kept apart where it combines a few elements: see ``few``."""
    is_apart = few.along(input, layer.axes)
    op = getattr(to.trt.ReduceOperation, layer.op.value)
    result = to.network.add_reduce(input, op, mask(layer.axes), layer.keep_dims or is_apart)
    if result is None or not is_apart:
        return result
    kept = few.apart(to, result.get_output(0))
    return kept if layer.keep_dims else few.without(to, kept, layer.axes)


def softmax(to: Definition, layer: Softmax, input: Any) -> Any:
    """``ISoftMaxLayer``, which takes rank 2 and more: a vector becomes one row and back.

    Of one element it is 1, or NaN, written without a sum: see ``matrix_multiply``. Of a few it is written in smaller layers: see ``few``.
    """
    if tuple(input.shape)[layer.axis] == 1:
        return to.network.add_unary(to.elementwise("SUB", input, input), to.trt.UnaryOperation.EXP)
    if few.floats_along(to, input, (layer.axis,)):
        return few.softmax(to, input, layer.axis)
    if len(input.shape) > 1:
        result = to.network.add_softmax(input)
        if result is not None:
            result.axes = mask((layer.axis,))
        return result
    row = to.network.add_softmax(to.reshape(input, (1, -1)))
    row.axes = mask((1,))
    return to.reshape(row.get_output(0), (-1,))


def topk(to: Definition, layer: TopK, input: Any) -> Any:
    """``ITopKLayer``, which takes rank 2 and more: a vector becomes one row and back."""
    op = getattr(to.trt.TopKOperation, layer.op.value)
    if len(input.shape) > 1:
        return to.network.add_topk(input, op, layer.k, mask((layer.axis,)))
    row = to.network.add_topk(to.reshape(input, (1, -1)), op, layer.k, mask((1,)))
    return None if row is None else tuple(to.reshape(row.get_output(index), (layer.k,)) for index in range(2))


def normalization(to: Definition, layer: Normalization, input: Any, scale: Any, bias: Any) -> Any:
    """``INormalizationLayer`` with scale and bias per channel, which releases before 10.14 have for ungrouped axes only.

    Of a few elements it is written in smaller layers: see ``few``.
    """
    if layer.groups == 1 and few.floats_along(to, input, layer.axes):
        return few.normalization(to, layer, input, scale, bias)
    add = getattr(to.network, "add_normalization_v2", None)
    if add is None:
        if layer.groups > 1:
            version = f"{to.library.name} {to.library.version}"
            raise BuildError(f"{version} has no group norm with scale and bias per channel", fix="install a newer release of the library")
        add = to.network.add_normalization
    result = add(input, scale, bias, mask(layer.axes))
    if result is not None:
        result.epsilon = layer.epsilon
        result.num_groups = layer.groups
    return result


def cumulative(to: Definition, layer: Cumulative, input: Any) -> Any:
    """``ICumulativeLayer``; its axis is a 0-d tensor."""
    axis = to.constant(torch.tensor(layer.axis, dtype=torch.int64))
    return to.network.add_cumulative(input, axis, getattr(to.trt.CumulativeOperation, layer.op.value), False, False)
