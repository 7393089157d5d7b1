"""Layer, group and RMS normalization, and softmax."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchkiln_converters.arrival import Result
from torchkiln_converters.converter import converter
from torchkiln_converters.support import FLOATS, Support, only_output, same_dtype
from torchkiln_converters.writing.shapes import axis_of, product, reshape
from torchkiln_converters.writing.values import add, cast, mul, number, sub, unary
from torchkiln_core import Network, OpCall, Requires, Value
from torchkiln_core.layers import Normalization, Reduce, ReduceOp, Softmax, UnaryOp

aten = torch.ops.aten


def _full(net: Network, value: Value | None, fill: float, shape: Sequence[int], dtype: torch.dtype) -> Value:
    """A scale or bias in ``shape``, made of ``fill`` where it is left out."""
    if value is None:
        return net.constant(torch.full(tuple(shape), fill, dtype=dtype))
    return reshape(net, value, shape)


def _layer_norm(net: Network, value: Value, weight: Value | None, bias: Value | None, shape: tuple[int, ...], eps: float) -> Value:
    rank = value.rank
    axes = tuple(range(rank - len(shape), rank))
    padded = (1,) * (rank - len(shape)) + shape
    scale = _full(net, weight, 1.0, padded, value.dtype)
    return net.add(Normalization(axes, eps), value, scale, _full(net, bias, 0.0, padded, value.dtype))


def _has_size(argument: str) -> Requires:
    return Requires(f"at least one dimension in {argument}", lambda call: len(call.arguments[argument]) > 0)


_LAYER_NORM = (same_dtype("input", "weight", "bias"), _has_size("normalized_shape"))


@converter(aten.layer_norm.default, Support(dtypes=FLOATS, rules=_LAYER_NORM, ignores=("cudnn_enable",)))
def layer_norm(
    net: Network, input: Value, normalized_shape: tuple[int, ...], weight: Value | None, bias: Value | None, eps: float
) -> Value:
    """``layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, ...)``, one layer; statistics in float32."""
    return _layer_norm(net, input, weight, bias, normalized_shape, eps)


@converter(aten.native_layer_norm.default, Support(dtypes=FLOATS, rules=(*_LAYER_NORM, only_output(0))))
def native_layer_norm(
    net: Network, input: Value, normalized_shape: tuple[int, ...], weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value | None, ...]:
    """``native_layer_norm(Tensor input, SymInt[] normalized_shape, ...)`` when only the first result is read."""
    return _layer_norm(net, input, weight, bias, normalized_shape, eps), None, None


def _group_norm(net: Network, value: Value, weight: Value | None, bias: Value | None, groups: int, eps: float) -> Value:
    """``[N, C, *]``, as ``[N, C, H, W]``: scale and bias are ``[1, C, 1, 1]``. One group spans all but the batch.

    TensorRT-RTX refuses groups of one element.
    """
    batch, channels, *spatial = value.shape
    if not isinstance(channels, int):
        raise TypeError(f"group_norm: the number of channels is symbolic: {channels}")
    area = product(spatial)
    flat = value if value.rank == 4 else reshape(net, value, (batch, channels, area, 1))
    shape = (1, channels, 1, 1)
    scale, shift = _full(net, weight, 1.0, shape, value.dtype), _full(net, bias, 0.0, shape, value.dtype)
    if groups > 1 and (groups < channels or area != 1):
        normal = net.add(Normalization((2, 3), eps, groups), flat, scale, shift)
        return normal if value.rank == 4 else reshape(net, normal, value.shape)
    wide = cast(net, flat, torch.float32)
    normal = _standardized(net, wide, (1, 2, 3) if groups == 1 else (2, 3), eps)
    scaled = add(net, mul(net, normal, cast(net, scale, torch.float32)), cast(net, shift, torch.float32))
    return reshape(net, cast(net, scaled, value.dtype), value.shape)


def _standardized(net: Network, wide: Value, axes: tuple[int, ...], eps: float) -> Value:
    """``(x - mean) / sqrt(var + eps)`` in float32."""
    centered = sub(net, wide, net.add(Reduce(ReduceOp.AVG, axes, True), wide))
    variance = net.add(Reduce(ReduceOp.AVG, axes, True), mul(net, centered, centered))
    deviation = unary(net, UnaryOp.SQRT, add(net, variance, number(net, eps, torch.float32)))
    return mul(net, centered, unary(net, UnaryOp.RECIP, deviation))


def _static_channels(call: OpCall) -> bool:
    return isinstance(call.arguments["input"].meta["val"].shape[1], int)


_GROUP_NORM = (same_dtype("input", "weight", "bias"), Requires("a static number of channels", _static_channels, "static"))


@converter(aten.group_norm.default, Support(dtypes=FLOATS, ranks=range(2, 9), rules=_GROUP_NORM, ignores=("cudnn_enabled",)))
def group_norm(net: Network, input: Value, num_groups: int, weight: Value | None, bias: Value | None, eps: float) -> Value:
    """``group_norm(Tensor input, int num_groups, Tensor? weight=None, ...)``; kept whole as one layer, statistics in float32."""
    return _group_norm(net, input, weight, bias, num_groups, eps)


@converter(
    aten.native_group_norm.default,
    Support(dtypes=FLOATS, ranks=range(2, 9), rules=(*_GROUP_NORM, only_output(0)), ignores=("N", "C", "HxW")),
)
def native_group_norm(
    net: Network, input: Value, weight: Value | None, bias: Value | None, group: int, eps: float
) -> tuple[Value | None, ...]:
    """``native_group_norm(Tensor input, Tensor? weight, Tensor? bias, ...)`` when only the first result is read."""
    return _group_norm(net, input, weight, bias, group, eps), None, None


@converter(aten.rms_norm.default, Support(dtypes=FLOATS, rules=(same_dtype("input", "weight"), _has_size("normalized_shape"))))
def rms_norm(net: Network, input: Value, normalized_shape: tuple[int, ...], weight: Value | None, eps: float | None) -> Value:
    """``rms_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, float? eps=None)``, in float32.

    Without ``eps`` PyTorch adds the smallest step of the dtype that it computes in, float32 for half dtypes.
    """
    wide = cast(net, input, torch.float32)
    axes = tuple(range(input.rank - len(normalized_shape), input.rank))
    square = net.add(Reduce(ReduceOp.AVG, axes, True), mul(net, wide, wide))
    small = torch.finfo(torch.float32).eps if eps is None else eps
    root = unary(net, UnaryOp.SQRT, add(net, square, number(net, small, torch.float32)))
    normal = mul(net, wide, unary(net, UnaryOp.RECIP, root))
    if weight is not None:
        normal = mul(net, normal, cast(net, weight, torch.float32))
    return cast(net, normal, input.dtype)


def softmax_along(net: Network, value: Value, axis: int) -> Value:
    """Softmax of a value of any rank."""
    if value.rank == 0:
        return reshape(net, net.add(Softmax(0), reshape(net, value, (1,))), ())
    return net.add(Softmax(axis_of(axis, value.rank)), value)


@converter(aten._softmax.default, Support(dtypes=FLOATS, ignores=("half_to_float",)))
def softmax(net: Network, self: Value, dim: int, result: Result) -> Value:
    """``_softmax(Tensor self, int dim, bool half_to_float)``; the layer computes in float32 whatever its dtype."""
    return softmax_along(net, cast(net, self, result.dtype), dim)


@converter(aten._log_softmax.default, Support(dtypes=FLOATS, ignores=("half_to_float",)))
def log_softmax(net: Network, self: Value, dim: int, result: Result) -> Value:
    """``_log_softmax(Tensor self, int dim, bool half_to_float)``: ``x - max - log(sum(exp(x - max)))`` in float32."""
    wide = cast(net, self if self.rank else reshape(net, self, (1,)), torch.float32)
    axes = (axis_of(dim, wide.rank),)
    shifted = sub(net, wide, net.add(Reduce(ReduceOp.MAX, axes, True), wide))
    total = net.add(Reduce(ReduceOp.SUM, axes, True), unary(net, UnaryOp.EXP, shifted))
    return reshape(net, cast(net, sub(net, shifted, unary(net, UnaryOp.LOG, total)), result.dtype), result.shape)
