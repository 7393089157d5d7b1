"""Convolutions and batch normalization."""

from __future__ import annotations

import torch

from torchkiln_converters.arrival import Result
from torchkiln_converters.converter import converter
from torchkiln_converters.support import FLOATS, Requires, Support, fake, only_output, same_dtype
from torchkiln_converters.writing.shapes import reshape, spread, squeeze, unsqueeze
from torchkiln_converters.writing.values import add, cast, mul, number, sub, unary
from torchkiln_core import Network, OpCall, Value
from torchkiln_core.layers import Convolution, Deconvolution, UnaryOp

aten = torch.ops.aten


def _padding_covers_output(call: OpCall) -> bool:
    """The layer cuts ``padding - output_padding`` elements off the end, which must not be negative."""
    if not call.arguments["transposed"]:
        return True
    rank = fake(call, "input").dim() - 2
    padding, extra = call.arguments["padding"], call.arguments["output_padding"]
    return all(_at(padding, dim) >= _at(extra, dim) for dim in range(rank))


def _at(values: list[int], dim: int) -> int:
    return values[dim] if len(values) > 1 else values[0]


@converter(
    aten.convolution.default,
    Support(
        dtypes=FLOATS,
        ranks=range(3, 6),
        rules=(
            same_dtype("input", "weight", "bias"),
            Requires("padding >= output_padding", _padding_covers_output),
        ),
    ),
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
    """``convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, ...)``: ``[N, C, *] -> [N, K, *]`` with 1 to 3 dimensions.

    A 1-d convolution runs as a 2-d one over ``[N, C, 1, L]``. A transposed one of bfloat16 runs in float32 and is rounded once: the
    builder takes a deconvolution of bfloat16, but no engine can run it. Source: TensorRT-RTX 1.6 on sm_90.
    """
    spatial = input.rank - 2
    operands = [item for item in (input, weight, bias) if item is not None]
    if transposed and input.dtype is torch.bfloat16:
        operands = [cast(net, item, torch.float32) for item in operands]
    stride, padding, dilation, output_padding = (spread(values, spatial) for values in (stride, padding, dilation, output_padding))
    post = tuple(pad - extra for pad, extra in zip(padding, output_padding, strict=True)) if transposed else padding
    if spatial == 1:
        operands[:2] = [unsqueeze(net, item, 2) for item in operands[:2]]
        stride, padding, post, dilation = (1, *stride), (0, *padding), (0, *post), (1, *dilation)
    layer = (Deconvolution if transposed else Convolution)(stride, padding, post, dilation, groups)
    result = net.add(layer, *operands)
    return cast(net, squeeze(net, result, 2) if spatial == 1 else result, input.dtype)


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
