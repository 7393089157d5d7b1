"""Layers that act on each element."""

from __future__ import annotations

from typing import Any

from torchkiln_core.layers import Activation, Cast, Elementwise, ParametricRelu, Select, Unary
from torchkiln_runtime.adapter.definition import Definition


def cast(to: Definition, layer: Cast, input: Any) -> Any:
    """``ICastLayer``."""
    return to.network.add_cast(input, to.dtype(layer.dtype))


def activation(to: Definition, layer: Activation, input: Any) -> Any:
    """``IActivationLayer``; takes rank 0 too."""
    result = to.network.add_activation(input, getattr(to.trt.ActivationType, layer.op.value))
    if result is not None:
        result.alpha = layer.alpha
        result.beta = layer.beta
    return result


def unary(to: Definition, layer: Unary, input: Any) -> Any:
    """``IUnaryLayer``."""
    return to.network.add_unary(input, getattr(to.trt.UnaryOperation, layer.op.value))


def elementwise(to: Definition, layer: Elementwise, left: Any, right: Any) -> Any:
    """``IElementWiseLayer``."""
    return to.network.add_elementwise(left, right, getattr(to.trt.ElementWiseOperation, layer.op.value))


def select(to: Definition, layer: Select, condition: Any, then: Any, otherwise: Any) -> Any:
    """``ISelectLayer``."""
    return to.network.add_select(condition, then, otherwise)


def parametric_relu(to: Definition, layer: ParametricRelu, input: Any, slope: Any) -> Any:
    """``IParametricReLULayer``."""
    return to.network.add_parametric_relu(input, slope)
