"""Fake quantization: what rounding to integers with a scale and a zero point leaves of floats."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from torchkiln_core.call import OpCall
from torchkiln_core.rejection import Requires
from torchkiln_lowering.decompositions.numbers import float32
from torchkiln_lowering.decompositions.precision import as_dtype
from torchkiln_lowering.decompositions.table import Decomposition

aten = torch.ops.aten
_LARGEST = 1 << 24
"""Up to here float32 holds every integer."""


def per_tensor_masked(x: torch.Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int) -> tuple[Any, Any]:
    """``fake_quantize_per_tensor_affine_cachemask``: ``[*] -> [*], bool [*]``.

    Infinities become the limits, and NaN stays; both are undefined in PyTorch, which casts them to integers.
    Source: ATen/native/quantized/cpu/kernels/QuantizedOpKernels.cpp, ``fake_quantize_tensor_cachemask_kernel``.
    """
    # The kernel inverts the scale in float32.
    inverse = 1.0 / float32(scale)
    whole = aten.round.default(aten.mul.Scalar(as_dtype(x, torch.float32), inverse))
    # Adding 0 too: the kernel's integers know no negative zero.
    whole = aten.add.Scalar(whole, zero_point)
    limited = aten.sub.Scalar(_limited(whole, quant_min, quant_max), zero_point)
    return as_dtype(aten.mul.Scalar(limited, scale), x.dtype), _inside(whole, quant_min, quant_max)


def per_tensor(x: torch.Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int) -> Any:
    """``fake_quantize_per_tensor_affine``: ``[*] -> [*]``."""
    return per_tensor_masked(x, scale, zero_point, quant_min, quant_max)[0]


def per_channel_masked(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int, quant_min: int, quant_max: int
) -> tuple[Any, Any]:
    """``fake_quantize_per_channel_affine_cachemask``: ``[*], [C], [C] -> [*], bool [*]``."""
    shape = [1] * x.dim()
    shape[axis] = scale.shape[0]
    return _by_tensors(x, aten.view.default(scale, shape), aten.view.default(zero_point, shape), quant_min, quant_max)


def per_channel(x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int, quant_min: int, quant_max: int) -> Any:
    """``fake_quantize_per_channel_affine``: ``[*], [C], [C] -> [*]``."""
    return per_channel_masked(x, scale, zero_point, axis, quant_min, quant_max)[0]


def per_tensor_of_tensors(x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, quant_min: int, quant_max: int) -> Any:
    """``fake_quantize_per_tensor_affine.tensor_qparams``: ``[*], [1], [1] -> [*]``."""
    return _by_tensors(x, aten.view.default(scale, []), aten.view.default(zero_point, []), quant_min, quant_max)[0]


def per_tensor_if_enabled(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, fake_quant_enabled: torch.Tensor, quant_min: int, quant_max: int
) -> tuple[Any, Any]:
    """``_fake_quantize_per_tensor_affine_cachemask_tensor_qparams``: ``x`` itself, with nothing masked, where it is not enabled."""
    out, mask = _by_tensors(x, aten.view.default(scale, []), aten.view.default(zero_point, []), quant_min, quant_max)
    enabled = aten.ne.Scalar(aten.view.default(fake_quant_enabled, []), 0)
    return aten.where.self(enabled, out, x), aten.logical_or.default(mask, aten.logical_not.default(enabled))


def _by_tensors(x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, quant_min: int, quant_max: int) -> tuple[Any, Any]:
    """Scale and zero point broadcast over ``x`` ``[*]``."""
    factor, zero = as_dtype(scale, torch.float32), as_dtype(zero_point, torch.float32)
    whole = aten.round.default(aten.mul.Tensor(as_dtype(x, torch.float32), aten.reciprocal.default(factor)))
    whole = aten.add.Tensor(whole, zero)
    limited = aten.sub.Tensor(_limited(whole, quant_min, quant_max), zero)
    return as_dtype(aten.mul.Tensor(limited, factor), x.dtype), _inside(whole, quant_min, quant_max)


def _limited(whole: torch.Tensor, low: int, high: int) -> Any:
    return aten.clamp.default(whole, low, high)


def _inside(whole: torch.Tensor, low: int, high: int) -> Any:
    return aten.logical_and.default(aten.ge.Scalar(whole, low), aten.le.Scalar(whole, high))


def _is_whole(call: OpCall) -> bool:
    """Zero points in floats are rounded together with the quotient."""
    return not call.arguments["zero_point"].meta["val"].dtype.is_floating_point


def _is_near(call: OpCall) -> bool:
    zero = call.arguments["zero_point"]
    return isinstance(zero, int) and abs(zero) <= _LARGEST


def _is_held(call: OpCall) -> bool:
    scale = call.arguments["scale"]
    return isinstance(scale, (int, float)) and scale > 0 and 0 < float32(scale) < math.inf


def _is_limited(call: OpCall) -> bool:
    return bool(-_LARGEST <= call.arguments["quant_min"] <= call.arguments["quant_max"] <= _LARGEST)


def _is_float(call: OpCall) -> bool:
    return call.arguments["self"].meta["val"].dtype in (torch.float32, torch.float16, torch.bfloat16)


_RANGES = (
    Requires(f"quant_min and quant_max in order, at most {_LARGEST} from 0", _is_limited),
    Requires("float32, float16 or bfloat16 elements", _is_float),
)
_BY_NUMBERS = (
    Requires("a known scale above 0 that float32 holds", _is_held),
    Requires(f"a known zero point at most {_LARGEST} from 0", _is_near),
    *_RANGES,
)
_BY_TENSORS = (Requires("zero points of integers", _is_whole), *_RANGES)

FAKE_QUANTIZE: dict[Callable[..., Any], Decomposition] = {
    aten.fake_quantize_per_tensor_affine.default: Decomposition(per_tensor, limits=_BY_NUMBERS),
    aten.fake_quantize_per_tensor_affine.tensor_qparams: Decomposition(per_tensor_of_tensors, limits=_BY_TENSORS),
    aten.fake_quantize_per_tensor_affine_cachemask.default: Decomposition(per_tensor_masked, limits=_BY_NUMBERS),
    aten.fake_quantize_per_channel_affine.default: Decomposition(per_channel, limits=_BY_TENSORS),
    aten.fake_quantize_per_channel_affine_cachemask.default: Decomposition(per_channel_masked, limits=_BY_TENSORS),
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: Decomposition(per_tensor_if_enabled, limits=_BY_TENSORS),
}
