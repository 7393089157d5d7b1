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


def _has_kernel(call: OpCall) -> bool:
    """Building succeeds, but the engine finds no execution plan when it is loaded or run. Source: TensorRT-RTX 1.6 on sm_90."""
    return not (call.arguments["transposed"] and fake(call, "input").dtype is torch.bfloat16)


def _at(values: list[int], dim: int) -> int:
    return values[dim] if len(values) > 1 else values[0]


@converter(
    aten.convolution.default,
    Support(
        dtypes=FLOATS,
        ranks=range(3, 6),
        rules=(
            Requires("float32 or float16 for a transposed convolution: TensorRT has no bfloat16 kernel", _has_kernel, "dtype"),
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

    A 1-d convolution runs as a 2-d one over ``[N, C, 1, L]``.
    """
    spatial = input.rank - 2
    stride, padding, dilation, output_padding = (spread(values, spatial) for values in (stride, padding, dilation, output_padding))
    post = tuple(pad - extra for pad, extra in zip(padding, output_padding, strict=True)) if transposed else padding
    if spatial == 1:
        input, weight = unsqueeze(net, input, 2), unsqueeze(net, weight, 2)
        stride, padding, post, dilation = (1, *stride), (0, *padding), (0, *post), (1, *dilation)
    layer = (Deconvolution if transposed else Convolution)(stride, padding, post, dilation, groups)
    result = net.add(layer, input, weight) if bias is None else net.add(layer, input, weight, bias)
    return squeeze(net, result, 2) if spatial == 1 else result


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

    ``input * scale + shift`` with scale and shift ``[C]`` in float32; TensorRT computes both when it builds and folds them into a
    convolution before them, and the weights keep their names for refitting. ``momentum`` plays no part outside training.
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
