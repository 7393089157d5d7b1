"""Layers that change how a tensor is seen, read its shape, or make one."""

from __future__ import annotations

from typing import Any

import torch

from torchkiln_core.layers import Constant, Linspace, RandomNormal, RandomUniform, Shape, Shuffle
from torchkiln_runtime.adapter.definition import Definition


def shuffle(to: Definition, layer: Shuffle, input: Any, shape: Any | None = None) -> Any:
    """``IShuffleLayer``, in which 0 stands for 0."""
    result = to.network.add_shuffle(input)
    if result is None:
        return None
    result.zero_is_placeholder = False
    if layer.first is not None:
        result.first_transpose = layer.first
    if layer.dims is not None:
        result.reshape_dims = to.dims(layer.dims)
    if shape is not None:
        result.set_input(1, shape)
    if layer.second is not None:
        result.second_transpose = layer.second
    return result


def shape(to: Definition, layer: Shape, input: Any) -> Any:
    """``IShapeLayer``."""
    return to.network.add_shape(input)


def constant(to: Definition, layer: Constant) -> Any:
    """``IConstantLayer``."""
    return to.network.add_constant(to.dims(tuple(layer.tensor.shape)), to.weights(layer.tensor))


def linspace(to: Definition, layer: Linspace, size: Any) -> Any:
    """``IFillLayer``: start is a 0-d tensor, delta has rank 1."""
    result = to.network.add_fill(to.dims((1,)), to.trt.FillOperation.LINSPACE, to.dtype(layer.dtype))
    if result is None:
        return None
    result.set_input(0, size)
    result.set_input(1, to.constant(torch.tensor(layer.start, dtype=layer.dtype)))
    result.set_input(2, to.constant(torch.tensor([layer.delta], dtype=layer.dtype)))
    return result


def random_uniform(to: Definition, layer: RandomUniform, size: Any) -> Any:
    """``IFillLayer``."""
    return _random(to, to.trt.FillOperation.RANDOM_UNIFORM, layer.dtype, size, (layer.low, layer.high))


def random_normal(to: Definition, layer: RandomNormal, size: Any) -> Any:
    """``IFillLayer``."""
    return _random(to, to.trt.FillOperation.RANDOM_NORMAL, layer.dtype, size, (layer.mean, layer.deviation))


def _random(to: Definition, op: Any, dtype: torch.dtype, size: Any, parameters: tuple[float, float]) -> Any:
    result = to.network.add_fill(to.dims((1,) * size.shape[0]), op, to.dtype(dtype))
    if result is None:
        return None
    result.alpha, result.beta = parameters
    result.set_input(0, size)
    return result
