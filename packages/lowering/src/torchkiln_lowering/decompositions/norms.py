"""Normalisations. Statistics in fp32 for half inputs, as eager kernels compute them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchkiln_core.call import OpCall
from torchkiln_core.rejection import Requires
from torchkiln_lowering.decompositions.precision import FLOATING, as_dtype, widened
from torchkiln_lowering.decompositions.table import HAS_DIMENSIONS, ONLY_FIRST, Decomposition

aten = torch.ops.aten
MaybeTensor = torch.Tensor | None


def _inference(call: OpCall) -> bool:
    return call.arguments["training"] is False and call.arguments["running_mean"] is not None


def _standardized(x: torch.Tensor, dims: Sequence[int], eps: float) -> Any:
    mean = aten.mean.dim(x, list(dims), True)
    centred = aten.sub.Tensor(x, mean)
    variance = aten.mean.dim(aten.mul.Tensor(centred, centred), list(dims), True)
    return aten.mul.Tensor(centred, aten.rsqrt.default(aten.add.Scalar(variance, eps)))


def _affine(x: torch.Tensor, weight: MaybeTensor, bias: MaybeTensor, shape: Sequence[int] | None = None) -> torch.Tensor:
    for operator, parameter in ((aten.mul.Tensor, weight), (aten.add.Tensor, bias)):
        if parameter is not None:
            fitted = parameter if shape is None else aten.view.default(parameter, list(shape))
            x = operator(x, widened(fitted))
    return x


def layer_norm(
    input: torch.Tensor, normalized_shape: Sequence[Any], weight: MaybeTensor, bias: MaybeTensor, eps: float
) -> tuple[torch.Tensor, None, None]:
    """``native_layer_norm`` without its statistics. Source: ATen/native/layer_norm.cpp."""
    dims = list(range(input.dim() - len(normalized_shape), input.dim()))
    out = _affine(_standardized(widened(input), dims, eps), weight, bias)
    return as_dtype(out, input.dtype), None, None


def group_norm(  # noqa: PLR0913 -- ATen's signature
    input: torch.Tensor, weight: MaybeTensor, bias: MaybeTensor, n: Any, c: Any, hxw: Any, group: int, eps: float
) -> tuple[torch.Tensor, None, None]:
    """``native_group_norm`` of ``[N, C, *]`` without its statistics. Source: ATen/native/group_norm.cpp."""
    # A reshape, since a channels-last input cannot be viewed by groups.
    grouped = aten.reshape.default(widened(input), [n, group, (c // group) * hxw])
    whole = aten.view.default(_standardized(grouped, [2], eps), list(input.shape))
    out = _affine(whole, weight, bias, [1, -1, *[1] * (input.dim() - 2)])
    return as_dtype(out, input.dtype), None, None


def rms_norm(input: torch.Tensor, normalized_shape: Sequence[Any], weight: MaybeTensor = None, eps: float | None = None) -> torch.Tensor:
    """``rms_norm``; the default ``eps`` is that of the dtype computed in. Source: ATen/native/layer_norm.cpp."""
    dims = list(range(input.dim() - len(normalized_shape), input.dim()))
    x = widened(input)
    mean = aten.mean.dim(aten.mul.Tensor(x, x), dims, True)
    scale = aten.rsqrt.default(aten.add.Scalar(mean, torch.finfo(x.dtype).eps if eps is None else eps))
    return as_dtype(_affine(aten.mul.Tensor(x, scale), weight, None), input.dtype)


def fused_rms_norm(
    input: torch.Tensor, normalized_shape: Sequence[Any], weight: MaybeTensor, eps: float | None
) -> tuple[torch.Tensor, None]:
    """``_fused_rms_norm`` without its statistics."""
    return rms_norm(input, normalized_shape, weight, eps), None


def batch_norm_inference(  # noqa: PLR0913 -- ATen's signature
    input: torch.Tensor,
    weight: MaybeTensor,
    bias: MaybeTensor,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    momentum: float,
    eps: float,
) -> tuple[torch.Tensor, None, None]:
    """``_native_batch_norm_legit_no_training`` of ``[N, C, *]``. Source: ATen/native/Normalization.cpp."""
    shape = [1, -1, *[1] * (input.dim() - 2)]
    scale = aten.rsqrt.default(aten.add.Scalar(widened(running_var), eps))
    centred = aten.sub.Tensor(widened(input), aten.view.default(widened(running_mean), shape))
    out = _affine(aten.mul.Tensor(centred, aten.view.default(scale, shape)), weight, bias, shape)
    return as_dtype(out, input.dtype), None, None


def batch_norm_instances(
    input: torch.Tensor, weight: MaybeTensor, bias: MaybeTensor, training: bool, momentum: float, eps: float
) -> tuple[torch.Tensor, None, None]:
    """``_native_batch_norm_legit.no_stats`` of ``[N, C, *]``: statistics of the batch itself."""
    dims = [0, *range(2, input.dim())]
    out = _affine(_standardized(widened(input), dims, eps), weight, bias, [1, -1, *[1] * (input.dim() - 2)])
    return as_dtype(out, input.dtype), None, None


def _by_inference(outputs: int) -> Callable[..., Any]:
    def batch_norm(  # noqa: PLR0913 -- ATen's signature
        input: torch.Tensor,
        weight: MaybeTensor,
        bias: MaybeTensor,
        running_mean: torch.Tensor,
        running_var: torch.Tensor,
        training: bool,
        momentum: float,
        eps: float,
        cudnn_enabled: bool = True,
    ) -> Any:
        out = aten._native_batch_norm_legit_no_training.default(input, weight, bias, running_mean, running_var, momentum, eps)[0]
        return out if outputs == 1 else (out, *[None] * (outputs - 1))

    return batch_norm


def _static_count(call: OpCall) -> bool:
    value = call.arguments["self"].meta["val"]
    dims = call.arguments["dim"] or range(value.dim())
    return all(isinstance(value.shape[dim], int) for dim in dims)


def variance(x: torch.Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False) -> torch.Tensor:
    """``var.correction`` with the mean taken off first. Source: ATen/native/ReduceOps.cpp."""
    return as_dtype(_moments(x, dim, correction, keepdim)[0], x.dtype)


def variance_and_mean(
    x: torch.Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """``var_mean.correction``."""
    spread, mean = _moments(x, dim, correction, keepdim)
    return as_dtype(spread, x.dtype), as_dtype(mean, x.dtype)


def deviation(x: torch.Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False) -> torch.Tensor:
    """``std.correction``."""
    return as_dtype(aten.sqrt.default(_moments(x, dim, correction, keepdim)[0]), x.dtype)


def _moments(x: torch.Tensor, dim: Sequence[int] | None, correction: float | None, keepdim: bool) -> tuple[torch.Tensor, torch.Tensor]:
    dims = sorted({int(item) % x.dim() for item in (dim or range(x.dim()))})
    wide = widened(x)
    mean = aten.mean.dim(wide, dims, True)
    centred = aten.sub.Tensor(wide, mean)
    total = aten.sum.dim_IntList(aten.mul.Tensor(centred, centred), dims, keepdim)
    count = 1
    for item in dims:
        count *= int(x.shape[item])
    spread = aten.div.Scalar(total, max(0.0, count - (1 if correction is None else correction)))
    return spread, mean if keepdim else aten.squeeze.dims(mean, dims)


_NORMALIZED = (FLOATING, ONLY_FIRST)
_INFERENCE = Requires("training=False and running statistics", _inference)
_COUNTED = (
    FLOATING,
    HAS_DIMENSIONS,
    Requires("known sizes of the dimensions that are reduced", _static_count),
)

NORMS: dict[Callable[..., Any], Decomposition] = {
    aten.native_layer_norm.default: Decomposition(layer_norm, limits=_NORMALIZED),
    aten.native_group_norm.default: Decomposition(group_norm, limits=_NORMALIZED),
    aten.rms_norm.default: Decomposition(rms_norm, limits=(FLOATING,)),
    aten._fused_rms_norm.default: Decomposition(fused_rms_norm, limits=_NORMALIZED),
    aten._native_batch_norm_legit_no_training.default: Decomposition(batch_norm_inference, limits=_NORMALIZED),
    aten._native_batch_norm_legit.no_stats: Decomposition(batch_norm_instances, limits=_NORMALIZED),
    aten.batch_norm.default: Decomposition(_by_inference(1), limits=(FLOATING, _INFERENCE)),
    aten.native_batch_norm.default: Decomposition(_by_inference(3), limits=(*_NORMALIZED, _INFERENCE)),
    aten.var.correction: Decomposition(variance, limits=_COUNTED),
    aten.var_mean.correction: Decomposition(variance_and_mean, limits=_COUNTED),
    aten.std.correction: Decomposition(deviation, limits=_COUNTED),
}
