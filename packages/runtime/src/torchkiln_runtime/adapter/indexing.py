"""Layers that pick, place or join elements."""

from __future__ import annotations

from typing import Any

import torch

from torchkiln_core.layers import Concatenation, Gather, GatherMode, OneHot, Scatter, Slice
from torchkiln_runtime.adapter.definition import Definition


def slice_(to: Definition, layer: Slice, input: Any, *operands: Any) -> Any:
    """``ISliceLayer``: start, size, stride and fill are its inputs 1 to 4 where they are not attributes."""
    rank = len(input.shape)
    parts = (layer.start, layer.size, layer.stride)
    result = to.network.add_slice(input, *(to.dims((0,) * rank if part is None else part) for part in parts))
    if result is None:
        return None
    result.mode = getattr(to.trt.SampleMode, layer.mode.value)
    for index, operand in enumerate(operands, start=1):
        if operand is not None:
            is_vector_fill = index == 4 and len(operand.shape) > 0
            result.set_input(index, to.reshape(operand, ()) if is_vector_fill else operand)
    return result


def concatenation(to: Definition, layer: Concatenation, *inputs: Any) -> Any:
    """``IConcatenationLayer``."""
    result = to.network.add_concatenation(list(inputs))
    if result is not None:
        result.axis = layer.axis
    return result


def gather(to: Definition, layer: Gather, data: Any, indices: Any) -> Any:
    """``IGatherLayer``."""
    result = to.network.add_gather_v2(data, indices, getattr(to.trt.GatherMode, layer.mode.value))
    if result is not None:
        if layer.mode is not GatherMode.ND:
            result.axis = layer.axis
        result.num_elementwise_dims = layer.batch_dims
    return result


def scatter(to: Definition, layer: Scatter, data: Any, indices: Any, updates: Any) -> Any:
    """``IScatterLayer``."""
    result = to.network.add_scatter(data, indices, updates, getattr(to.trt.ScatterMode, layer.mode.value))
    if result is not None:
        result.axis = layer.axis
    return result


def one_hot(to: Definition, layer: OneHot, indices: Any, values: Any) -> Any:
    """``IOneHotLayer``; its depth is a 0-d constant."""
    depth = to.constant(torch.tensor(layer.depth, dtype=torch.int32))
    return to.network.add_one_hot(indices, values, depth, layer.axis)
