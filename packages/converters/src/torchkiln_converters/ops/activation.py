"""Activation functions."""

from __future__ import annotations

import torch

from torchkiln_converters.arrival import Scalar
from torchkiln_converters.converter import converter
from torchkiln_converters.support import FLOATS, NUMBERS, Equals, Support
from torchkiln_converters.writing.extremes import keep_nan
from torchkiln_converters.writing.values import HALVES, activation, add, cast, div, elementwise, less, mul, number, select, unary
from torchkiln_core import Network, Value
from torchkiln_core.layers import ActivationKind, ElementwiseOp, UnaryOp

aten = torch.ops.aten
_FLOATS = Support(dtypes=FLOATS)


@converter(aten.relu.default, Support(dtypes=NUMBERS))
def relu(net: Network, self: Value) -> Value:
    """``relu(Tensor self)``; NaN stays, and of the zeros their sign."""
    if self.dtype in FLOATS:
        return activation(net, self, ActivationKind.RELU)
    return elementwise(net, ElementwiseOp.MAX, self, number(net, 0, self.dtype, self.rank))


@converter(aten.sigmoid.default, _FLOATS)
def sigmoid(net: Network, self: Value) -> Value:
    """``sigmoid(Tensor self)``."""
    return activation(net, self, ActivationKind.SIGMOID)


@converter(aten.tanh.default, _FLOATS)
def tanh(net: Network, self: Value) -> Value:
    """``tanh(Tensor self)``."""
    return activation(net, self, ActivationKind.TANH)


@converter(aten.gelu.default, _FLOATS)
def gelu(net: Network, self: Value, approximate: str) -> Value:
    """``gelu(Tensor self, *, str approximate='none')``.

    In half precision TensorRT-RTX 1.6 rounds ``1 + erf(x)``. float16 is computed in float32, which costs no time: 24 products of
    2048 x 768 x 3072 with it took 0.57 ms on an H200, 0.60 ms without. bfloat16 is left to the library, though a tail of -0.004 has an
    error of up to 0.002 then: for float32 between a convolution and a pooling of bfloat16 the library gives wrong numbers.
    """
    kind = ActivationKind.GELU_TANH if approximate == "tanh" else ActivationKind.GELU_ERF
    wide = cast(net, self, torch.float32) if self.dtype is torch.float16 else self
    return cast(net, activation(net, wide, kind), self.dtype)


@converter(aten.silu.default, _FLOATS)
def silu(net: Network, self: Value) -> Value:
    """``silu(Tensor self)``: ``self * sigmoid(self)``."""
    return mul(net, self, activation(net, self, ActivationKind.SIGMOID))


@converter(aten.leaky_relu.default, _FLOATS)
def leaky_relu(net: Network, self: Value, negative_slope: float) -> Value:
    """``leaky_relu(Tensor self, Scalar negative_slope=0.01)``."""
    return activation(net, self, ActivationKind.LEAKY_RELU, negative_slope)


@converter(aten.elu.default, Support(dtypes=FLOATS, rules=(Equals("input_scale", 1),)))
def elu(net: Network, self: Value, alpha: float, scale: float) -> Value:
    """``elu(Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1)``."""
    if scale == 1:
        return activation(net, self, ActivationKind.ELU, alpha)
    wide = _widened(net, self)
    return cast(net, mul(net, activation(net, wide, ActivationKind.ELU, alpha), number(net, scale, wide.dtype)), self.dtype)


@converter(aten.hardtanh.default, _FLOATS)
def hardtanh(net: Network, self: Value, min_val: float, max_val: float) -> Value:
    """``hardtanh(Tensor self, Scalar min_val=-1, Scalar max_val=1)``; NaN stays."""
    return keep_nan(net, self, activation(net, self, ActivationKind.CLIP, min_val, max_val))


@converter(aten.relu6.default, _FLOATS)
def relu6(net: Network, self: Value) -> Value:
    """``relu6(Tensor self)``; NaN stays."""
    return keep_nan(net, self, activation(net, self, ActivationKind.CLIP, 0.0, 6.0))


@converter(aten.hardsigmoid.default, _FLOATS)
def hardsigmoid(net: Network, self: Value) -> Value:
    """``hardsigmoid(Tensor self)``: ``clamp(self + 3, 0, 6) / 6``, in float32 for half dtypes; NaN stays."""
    return keep_nan(net, self, cast(net, _sixth(net, _widened(net, self)), self.dtype))


@converter(aten.hardswish.default, _FLOATS)
def hardswish(net: Network, self: Value) -> Value:
    """``hardswish(Tensor self)``: ``self * clamp(self + 3, 0, 6) / 6``, in float32 for half dtypes; the product keeps NaN."""
    wide = _widened(net, self)
    return cast(net, mul(net, wide, _sixth(net, wide)), self.dtype)


def _widened(net: Network, value: Value) -> Value:
    return cast(net, value, torch.float32 if value.dtype in HALVES else value.dtype)


def _sixth(net: Network, wide: Value) -> Value:
    return activation(net, wide, ActivationKind.HARD_SIGMOID, 1 / 6, 0.5)


@converter(aten.softplus.default, _FLOATS)
def softplus(net: Network, self: Value, beta: Scalar, threshold: Scalar) -> Value:
    """``softplus(Tensor self, Scalar beta=1, Scalar threshold=20)``: ``log(1 + exp(beta * self)) / beta``, ``self`` above the threshold.

    Written as ``max(x, 0) + log(1 + exp(-|x|))`` with ``x = beta * self``, which does not overflow.
    """
    wide = _widened(net, self)
    scaled = mul(net, wide, number(net, beta, wide.dtype))
    soft = div(net, _softplus(net, scaled), number(net, beta, wide.dtype))
    above = less(net, number(net, threshold, wide.dtype), scaled)
    return cast(net, select(net, above, wide, soft), self.dtype)


def _softplus(net: Network, value: Value) -> Value:
    small = unary(net, UnaryOp.EXP, unary(net, UnaryOp.NEG, unary(net, UnaryOp.ABS, value)))
    rest = unary(net, UnaryOp.LOG, add(net, small, number(net, 1, value.dtype)))
    return add(net, elementwise(net, ElementwiseOp.MAX, value, number(net, 0, value.dtype)), rest)


@converter(aten.mish.default, _FLOATS)
def mish(net: Network, self: Value) -> Value:
    """``mish(Tensor self)``: ``self * tanh(softplus(self))``."""
    wide = _widened(net, self)
    return cast(net, mul(net, wide, activation(net, _softplus(net, wide), ActivationKind.TANH)), self.dtype)


@converter(aten.threshold.default, _FLOATS)
def threshold(net: Network, self: Value, threshold: Scalar, value: Scalar) -> Value:
    """``threshold(Tensor self, Scalar threshold, Scalar value)``: ``value`` where ``self <= threshold``; NaN stays."""
    limit = number(net, threshold, self.dtype)
    above = less(net, limit, self)
    is_nan = unary(net, UnaryOp.ISNAN, self)
    return select(net, elementwise(net, ElementwiseOp.OR, above, is_nan), self, number(net, value, self.dtype))


@converter(aten._prelu_kernel.default, _FLOATS)
def prelu(net: Network, self: Value, weight: Value) -> Value:
    """``_prelu_kernel(Tensor self, Tensor weight)``: ``self`` above 0, else ``weight * self``; operands broadcast."""
    return select(net, less(net, number(net, 0, self.dtype), self), self, mul(net, self, weight))
