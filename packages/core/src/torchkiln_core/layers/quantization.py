"""Layers between floats and 8-bit numbers with a scale."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torchkiln_core.errors import InternalError
from torchkiln_core.layers.checks import axis_in_range, floating, is_real
from torchkiln_core.network import Layer

_LARGEST_FP8 = 448.0
_QUANTIZED = (torch.int8, torch.float8_e4m3fn)


def _spread(kind: str, input: torch.Tensor, scale: torch.Tensor, axis: int | None, block: tuple[int, ...] | None) -> torch.Tensor:
    """``scale`` in float32 and in a shape that broadcasts with ``input``: ``[]``, one element per channel, or one per block."""
    floating(kind, scale)
    if input.dim() < 1:
        raise InternalError(f"{kind}: expected an input of rank 1 or more, got rank 0")
    if axis is not None and block is not None:
        raise InternalError(f"{kind}: expected an axis or a block, got both")
    dims: tuple[int, ...] = () if axis is None else (axis,)
    sizes = (1,) * len(dims)
    if block is not None:
        dims, sizes = tuple(range(input.dim())), block
    if not scale.dim() == len(sizes) == len(dims):
        raise InternalError(f"{kind}: expected a scale of rank {len(dims)}, got rank {scale.dim()}; axis {axis}, block {block}")
    for dim, count, size in zip(dims, scale.shape, sizes, strict=True):
        axis_in_range(kind, dim, input.dim())
        if size < 1 or statically_known_true(count * size != input.shape[dim]):
            raise InternalError(f"{kind}: dimension {dim} of size {input.shape[dim]} has not {count} parts of {size}")
    if not is_real(input):
        return scale
    wide = scale.to(torch.float32)
    if axis is not None:
        return wide.reshape([-1 if dim == axis else 1 for dim in range(input.dim())])
    for dim, size in enumerate(block or ()):
        wide = wide.repeat_interleave(size, dim)
    return wide


@dataclass(frozen=True, slots=True)
class Quantize(Layer):
    """``clamp(round(input / scale))`` as int8 in [-128, 127], or as fp8 in [-448, 448]; ties to even.

    Source: TensorRT operator page "Quantize".

    The scale is positive: one number, one for each place of ``axis``, or with ``block`` (a size per dimension) one for each block. It may
    have another float dtype than the input; the quotient is taken in float32. The zero point is 0.

    Found on an H200 and not reproduced here: half precisions are divided in their own precision, so that results near a tie may round to
    the other side.
    """

    dtype: torch.dtype
    axis: int | None = None
    block: tuple[int, ...] | None = None

    def run(self, input: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """``[*], [] or [n] or [*] -> [*]``; floating, rank 1 or more."""
        floating("Quantize", input)
        if self.dtype not in _QUANTIZED:
            raise InternalError(f"Quantize: expected int8 or float8_e4m3fn, got {self.dtype}")
        divisor = _spread("Quantize", input, scale, self.axis, self.block)
        if not is_real(input):
            return input.new_empty(input.shape, dtype=self.dtype)
        quotient = input.to(torch.float32) / divisor
        if self.dtype is torch.int8:
            return quotient.round().clamp(-128, 127).to(torch.int8)
        return quotient.clamp(-_LARGEST_FP8, _LARGEST_FP8).to(self.dtype)


@dataclass(frozen=True, slots=True)
class Dequantize(Layer):
    """``input * scale`` in ``dtype``; the scale is that of ``Quantize``. Source: TensorRT operator page "Dequantize".

    Converters give it scales that are known when the engine is built: TensorRT-RTX 1.6 builds a layer of computed scales per channel too,
    which multiplies by other ones on sm_90.
    """

    dtype: torch.dtype
    axis: int | None = None
    block: tuple[int, ...] | None = None

    def run(self, input: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """``[*], [] or [n] or [*] -> [*]``; int8 or fp8, rank 1 or more."""
        if input.dtype not in _QUANTIZED:
            raise InternalError(f"Dequantize: expected int8 or float8_e4m3fn, got {input.dtype}")
        factor = _spread("Dequantize", input, scale, self.axis, self.block)
        result = input.new_empty(input.shape, dtype=self.dtype)
        floating("Dequantize", result)
        return (input.to(torch.float32) * factor).to(self.dtype) if is_real(input) else result
