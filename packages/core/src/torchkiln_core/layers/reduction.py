"""Layers that combine the elements along axes."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torchkiln_core.errors import InternalError
from torchkiln_core.layers.checks import axis_in_range, floating, is_real, same_dtype, same_rank
from torchkiln_core.network import Layer


def _without_nan(input: torch.Tensor, instead: float) -> torch.Tensor:
    return torch.where(input.isnan(), torch.full_like(input, instead), input) if input.dtype.is_floating_point else input


class ReduceOp(enum.Enum):
    """``trt.ReduceOperation``."""

    SUM = "SUM"
    PROD = "PROD"
    MAX = "MAX"
    MIN = "MIN"
    AVG = "AVG"


@dataclass(frozen=True, slots=True)
class Reduce(Layer):
    """Reduces ``axes`` (at least one). Source: TensorRT operator page "Reduce".

    ``MAX`` and ``MIN`` ignore NaN: of nothing but NaN they are ``-inf`` and ``inf``, or NaN in TensorRT's float32 and float16 with static
    shapes. TensorRT's ``SUM`` and ``AVG`` of nothing but -0.0 may be -0.0, and its ``AVG`` sums in float16, which may overflow.
    """

    op: ReduceOp
    axes: tuple[int, ...]
    keep_dims: bool

    def run(self, input: torch.Tensor) -> torch.Tensor:
        """``[*] -> [*]``, of the input's dtype."""
        if not self.axes or input.dtype is torch.bool:
            raise InternalError(f"Reduce {self.op.value}: does not take axes {self.axes} of {input.dtype}")
        for axis in self.axes:
            axis_in_range("Reduce", axis, input.dim())
        axes = list(self.axes)
        match self.op:
            case ReduceOp.SUM:
                return torch.sum(input, axes, self.keep_dims, dtype=input.dtype)
            case ReduceOp.AVG:
                floating("Reduce AVG", input)
                return torch.mean(input, axes, self.keep_dims)
            case ReduceOp.MAX:
                return torch.amax(_without_nan(input, float("-inf")), axes, self.keep_dims)
            case ReduceOp.MIN:
                return torch.amin(_without_nan(input, float("inf")), axes, self.keep_dims)
            case ReduceOp.PROD:
                for axis in sorted(axes, reverse=True):
                    input = torch.prod(input, axis, self.keep_dims, dtype=input.dtype)
                return input


@dataclass(frozen=True, slots=True)
class Softmax(Layer):
    """Softmax along one axis. Source: TensorRT operator page "SoftMax". TensorRT's bfloat16 results are off by about 2%."""

    axis: int

    def run(self, input: torch.Tensor) -> torch.Tensor:
        """``[*] -> [*]``, floating, rank 1 or more."""
        floating("Softmax", input)
        axis_in_range("Softmax", self.axis, input.dim())
        return torch.softmax(input, self.axis)


class TopKOp(enum.Enum):
    """``trt.TopKOperation``."""

    MAX = "MAX"
    MIN = "MIN"


@dataclass(frozen=True, slots=True)
class TopK(Layer):
    """The ``k`` largest or smallest along one axis, sorted, with int32 indices; ``1 <= k <= 3840``. Source: TensorRT operator page "TopK".

    Among equal elements the lower index comes first. NaN is the largest element; TensorRT's ``MIN`` gives it a wrong index.
    """

    op: TopKOp
    k: int
    axis: int

    def run(self, input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``[*, n, *] -> [*, k, *], int32 [*, k, *]``; rank 1 or more."""
        axis_in_range("TopK", self.axis, input.dim())
        if not 1 <= self.k <= 3840:
            raise InternalError(f"TopK: expected 1 <= k <= 3840, got {self.k}")
        extent = input.shape[self.axis]
        if statically_known_true(extent < self.k):
            raise InternalError(f"TopK: expected k <= {extent}, the size of axis {self.axis}, got {self.k}")
        if not is_real(input):
            shape = [self.k if dim == self.axis else size for dim, size in enumerate(input.shape)]
            return input.new_empty(shape), input.new_empty(shape, dtype=torch.int32)
        values, indices = torch.sort(input, dim=self.axis, descending=self.op is TopKOp.MAX, stable=True)
        return values.narrow(self.axis, 0, self.k), indices.narrow(self.axis, 0, self.k).to(torch.int32)


@dataclass(frozen=True, slots=True)
class Normalization(Layer):
    """``(x - mean) / sqrt(var + epsilon) * scale + bias`` with statistics over ``axes`` in float32.

    Source: TensorRT operator page "Normalization".

    With ``groups == 1`` and trailing axes this is layer norm, scale and bias of the input's rank with the normalized dimensions and 1
    elsewhere. With ``groups > 1`` it is group norm: axes are the spatial ones, scale and bias are ``[1, C, 1, *]``.
    """

    axes: tuple[int, ...]
    epsilon: float
    groups: int = 1

    def run(self, input: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """``[N, *], [*], [*] -> [N, *]``, floating."""
        floating("Normalization", input)
        same_dtype("Normalization", input, scale, bias)
        same_rank("Normalization", input, scale, bias)
        if not is_real(input):  # a dozen operators on fake tensors would infer no more
            return input.new_empty(input.shape)
        wide = input.to(torch.float32)
        axes = list(self.axes)
        if self.groups > 1:
            shape = wide.shape
            wide = wide.reshape(shape[0], self.groups, shape[1] // self.groups, *shape[2:])
            axes = list(range(2, wide.dim()))
        mean = wide.mean(axes, keepdim=True)
        variance = (wide - mean).square().mean(axes, keepdim=True)
        normal = ((wide - mean) * torch.rsqrt(variance + self.epsilon)).reshape(input.shape)
        return (normal * scale.to(torch.float32) + bias.to(torch.float32)).to(input.dtype)


class CumulativeOp(enum.Enum):
    """``trt.CumulativeOperation``."""

    SUM = "SUM"


@dataclass(frozen=True, slots=True)
class Cumulative(Layer):
    """Running sum along one axis. Source: TensorRT operator page "Cumulative"."""

    op: CumulativeOp
    axis: int

    def run(self, input: torch.Tensor) -> torch.Tensor:
        """``[*] -> [*]``, of the input's dtype."""
        axis_in_range("Cumulative", self.axis, input.dim())
        return torch.cumsum(input, self.axis, dtype=input.dtype)
