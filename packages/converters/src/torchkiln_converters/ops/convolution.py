"""Convolutions and batch normalization."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torchkiln_converters.arrival import Result
from torchkiln_converters.converter import converter
from torchkiln_converters.ops.padding import pad_with
from torchkiln_converters.support import FLOATS, Support, fake, only_output, same_dtype, static_shape
from torchkiln_converters.writing.shapes import reshape, same_size, spread, squeeze, unsqueeze, window
from torchkiln_converters.writing.values import add, cast, mul, number, sub, unary
from torchkiln_core import Network, OpCall, Requires, Size, Value
from torchkiln_core.layers import Convolution, Deconvolution, UnaryOp

aten = torch.ops.aten


def _begins_inside(call: OpCall) -> bool:
    """The layer has no empty result: the padding at the beginning may not cut everything off."""
    if not call.arguments.get("transposed", True):
        return True
    extents, kernel = (fake(call, name).shape[2:] for name in ("input", "weight"))
    stride, padding, dilation = (call.arguments[name] for name in ("stride", "padding", "dilation"))
    return all(
        statically_known_true((size - 1) * _at(stride, dim) + _at(dilation, dim) * (taps - 1) >= _at(padding, dim))
        for dim, (size, taps) in enumerate(zip(extents, kernel, strict=True))
    )


def _is_rounded_by_a_kernel(call: OpCall) -> bool:
    """In bfloat16 the layer stands between casts. With the one behind it, where no bias comes first, it has kernels of full channels only.

    Source: TensorRT-RTX 1.6 on sm_90.
    """
    if not call.arguments.get("transposed", True) or fake(call, "input").dtype is not torch.bfloat16 or call.arguments["bias"] is not None:
        return True
    channels, per_group = fake(call, "weight").shape[:2]
    return statically_known_true(channels % (8 * call.arguments["groups"]) == 0) and statically_known_true(per_group % 8 == 0)


_TRANSPOSED_3D = FLOATS - {torch.bfloat16}
"""TensorRT-RTX 1.6 on sm_90 has no kernel of a transposed 3-d convolution in bfloat16, nor of one in float32 between casts."""


def _has_a_kernel(call: OpCall) -> bool:
    input = fake(call, "input")
    return not call.arguments["transposed"] or input.dim() < 5 or input.dtype in _TRANSPOSED_3D


def _at(values: list[int], dim: int) -> int:
    return values[dim] if len(values) > 1 else values[0]


_ONE_DTYPE = same_dtype("input", "weight", "bias")
_TRANSPOSED = (
    Requires("a padding that leaves some of the transposed convolution", _begins_inside, "static"),
    Requires("a bias, or groups of 8, 16, ... channels, to transpose in bfloat16: TensorRT has no other kernel", _is_rounded_by_a_kernel),
)
_KERNEL = Requires("float32 or float16 to transpose in three dimensions: TensorRT has no kernel in bfloat16", _has_a_kernel)


@dataclass(frozen=True, slots=True)
class _Geometry:
    """How a kernel moves, by spatial dimension. A transposed convolution cuts the paddings off its result."""

    stride: tuple[int, ...]
    pre_padding: tuple[int, ...]
    post_padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def _write(
    net: Network, kind: type[Convolution | Deconvolution], geometry: _Geometry, input: Value, weight: Value, bias: Value | None
) -> Value:
    """``[N, C, *] -> [N, K, *]`` with 1 to 3 spatial dimensions.

    A 1-d convolution runs as a 2-d one over ``[N, C, 1, L]``. A transposed one of bfloat16 runs in float32 and is rounded once: the
    builder takes a deconvolution of bfloat16, but no engine can run it. Source: TensorRT-RTX 1.6 on sm_90.
    """
    spatial = input.rank - 2
    operands = [item for item in (input, weight, bias) if item is not None]
    if kind is Deconvolution and input.dtype is torch.bfloat16:
        operands = [cast(net, item, torch.float32) for item in operands]
    sides = (geometry.stride, geometry.pre_padding, geometry.post_padding, geometry.dilation)
    stride, before, after, dilation = (spread(values, spatial) for values in sides)
    if spatial == 1:
        operands[:2] = [unsqueeze(net, item, 2) for item in operands[:2]]
        stride, before, after, dilation = (1, *stride), (0, *before), (0, *after), (1, *dilation)
    result = net.add(kind(stride, before, after, dilation, geometry.groups), *operands)
    return cast(net, squeeze(net, result, 2) if spatial == 1 else result, input.dtype)


def _with_zeros_between(net: Network, input: Value, steps: tuple[int, ...]) -> Value:
    """``[N, C, *] -> [N, C, *]``: ``step - 1`` zeros between neighbours of each spatial dimension, ``(size - 1) * step + 1`` in all."""
    batch_and_channels, extents = input.shape[:2], input.shape[2:]
    apart: list[Size] = []
    pads: list[tuple[int, int]] = []
    for size, step in zip(extents, steps, strict=True):
        apart += [size] if step == 1 else [size, 1]
        pads += [(0, 0)] if step == 1 else [(0, 0), (0, step - 1)]
    padded = pad_with(net, reshape(net, input, (*batch_and_channels, *apart)), pads, 0)
    widened = reshape(net, padded, (*batch_and_channels, *(size * step for size, step in zip(extents, steps, strict=True))))
    sizes = (*batch_and_channels, *((size - 1) * step + 1 for size, step in zip(extents, steps, strict=True)))
    return window(net, widened, (0,) * input.rank, sizes, (1,) * input.rank)


def _without_both(net: Network, geometry: _Geometry, input: Value, weight: Value) -> tuple[_Geometry, Value]:
    """A transposed convolution and its input with strides of 1 or dilations of 1: TensorRT-RTX 1.6 builds none that has both.

    One tap has no dilation. Otherwise the strides become zeros between the elements of the input. They add nothing to the products with
    finite taps. Zeros between the taps instead of the dilations would be NaN times inf or NaN of the input, next to where eager has them.
    """
    spatial = input.rank - 2
    stride = spread(geometry.stride, spatial)
    steps = zip(weight.shape[2:], spread(geometry.dilation, spatial), strict=True)
    dilation = tuple(1 if same_size(net, taps, 1) else step for taps, step in steps)
    geometry = dataclasses.replace(geometry, dilation=dilation)
    if max(stride) == 1 or max(dilation) == 1:
        return geometry, input
    return dataclasses.replace(geometry, stride=(1,) * spatial), _with_zeros_between(net, input, stride)


def _write_transposed(
    net: Network, geometry: _Geometry, output_padding: tuple[int, ...], input: Value, weight: Value, bias: Value | None
) -> Value:
    """``output_padding`` is what the end of the result keeps of the padding.

    Where it is the larger one, the result goes on beyond what the kernel reaches: with zeros and the bias.
    """
    spatial = input.rank - 2
    geometry, input = _without_both(net, geometry, input, weight)
    ends = zip(spread(geometry.post_padding, spatial), spread(output_padding, spatial), strict=True)
    cuts = [padding - extra for padding, extra in ends]
    geometry = dataclasses.replace(geometry, post_padding=tuple(max(cut, 0) for cut in cuts))
    if min(cuts) >= 0:
        return _write(net, Deconvolution, geometry, input, weight, bias)
    wide = torch.float32 if input.dtype is torch.bfloat16 else input.dtype
    reached = _write(net, Deconvolution, geometry, cast(net, input, wide), cast(net, weight, wide), None)
    result = pad_with(net, reached, [(0, max(-cut, 0)) for cut in cuts], 0)
    if bias is not None:
        result = add(net, result, reshape(net, cast(net, bias, wide), (1, bias.shape[0], *(1,) * spatial)))
    return cast(net, result, input.dtype)


@converter(
    aten.convolution.default,
    Support(dtypes=FLOATS, ranks=range(3, 6), rules=(_ONE_DTYPE, *_TRANSPOSED, _KERNEL)),
)
def convolution(
    net: Network,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    transposed: bool,
    output_padding: tuple[int, ...],
    groups: int,
) -> Value:
    """``convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, ...)``: ``[N, C, *] -> [N, K, *]``."""
    geometry = _Geometry(stride, padding, padding, dilation, groups)
    if transposed:
        return _write_transposed(net, geometry, output_padding, input, weight, bias)
    return _write(net, Convolution, geometry, input, weight, bias)


# Composite operators, kept whole: PyTorch's kernels decide on a backend by the batch size, which decomposing would have to guard on.
def _by_rank(rank: int, dtypes: frozenset[torch.dtype] = FLOATS) -> Support:
    """With a batch; PyTorch adds one to a lone example by decomposition."""
    return Support(dtypes=dtypes, ranks=range(rank, rank + 1), rules=(_ONE_DTYPE,))


def _conv(
    net: Network,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> Value:
    """``conv1d``, ``conv2d`` and ``conv3d`` of ``[N, C, *]``."""
    return _write(net, Convolution, _Geometry(stride, padding, padding, dilation, groups), input, weight, bias)


def _conv_named(
    net: Network,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: tuple[int, ...],
    padding: str,
    dilation: tuple[int, ...],
    groups: int,
) -> Value:
    """The same with padding ``valid`` (none) or ``same``: of an odd total the end gets one more. Source: ATen/native/Convolution.cpp."""
    spatial = input.rank - 2
    totals = [0] * spatial
    if padding == "same":
        extents = [int(size) for size in weight.shape[2:]]
        totals = [step * (extent - 1) for step, extent in zip(spread(dilation, spatial), extents, strict=True)]
    before = tuple(total // 2 for total in totals)
    after = tuple(total - half for total, half in zip(totals, before, strict=True))
    return _write(net, Convolution, _Geometry(stride, before, after, dilation, groups), input, weight, bias)


def _conv_transpose(
    net: Network,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    output_padding: tuple[int, ...],
    groups: int,
    dilation: tuple[int, ...],
) -> Value:
    """``conv_transpose1d``, ``conv_transpose2d`` and ``conv_transpose3d`` of ``[N, C, *]``."""
    return _write_transposed(net, _Geometry(stride, padding, padding, dilation, groups), output_padding, input, weight, bias)


_STATIC_KERNEL = static_shape("weight")

conv1d = converter(aten.conv1d.default, _by_rank(3))(_conv)
conv2d = converter(aten.conv2d.default, _by_rank(4))(_conv)
conv3d = converter(aten.conv3d.default, _by_rank(5))(_conv)
conv1d_named = converter(aten.conv1d.padding, _by_rank(3).requiring(_STATIC_KERNEL))(_conv_named)
conv2d_named = converter(aten.conv2d.padding, _by_rank(4).requiring(_STATIC_KERNEL))(_conv_named)
conv3d_named = converter(aten.conv3d.padding, _by_rank(5).requiring(_STATIC_KERNEL))(_conv_named)
conv_transpose1d = converter(aten.conv_transpose1d.default, _by_rank(3).requiring(*_TRANSPOSED))(_conv_transpose)
conv_transpose2d = converter(aten.conv_transpose2d.input, _by_rank(4).requiring(*_TRANSPOSED))(_conv_transpose)
conv_transpose3d = converter(aten.conv_transpose3d.input, _by_rank(5, _TRANSPOSED_3D).requiring(*_TRANSPOSED))(_conv_transpose)


@converter(
    aten._native_batch_norm_legit_no_training.default,
    Support(dtypes=FLOATS, ranks=range(2, 9), rules=(only_output(0),), ignores=("momentum",)),
)
def batch_norm(
    net: Network,
    input: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    eps: float,
    result: Result,
) -> tuple[Value | None, ...]:
    """``_native_batch_norm_legit_no_training(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, ...)``: ``[N, C, *]``.

    ``input * scale + shift`` with scale and shift ``[C]`` in float32, which ``fold_channel_scales`` makes part of a convolution before
    them. ``momentum`` plays no part outside training.
    """
    mean, variance = (cast(net, value, torch.float32) for value in (running_mean, running_var))
    deviation = unary(net, UnaryOp.SQRT, add(net, variance, number(net, eps, torch.float32)))
    scale = unary(net, UnaryOp.RECIP, deviation)
    if weight is not None:
        scale = mul(net, cast(net, weight, torch.float32), scale)
    shift = unary(net, UnaryOp.NEG, mul(net, mean, scale))
    if bias is not None:
        shift = sub(net, cast(net, bias, torch.float32), mul(net, mean, scale))
    per_channel = (1, input.shape[1], *(1,) * (input.rank - 2))
    wide = mul(net, cast(net, input, torch.float32), reshape(net, scale, per_channel))
    return cast(net, add(net, wide, reshape(net, shift, per_channel)), result.dtype), None, None
