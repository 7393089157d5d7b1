"""Layers that multiply: matrix products and convolutions; and pooling, which shares their windows."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torchkiln_core.errors import InternalError
from torchkiln_core.layers.checks import floating, is_real, same_dtype
from torchkiln_core.network import Layer

_EQUATION = re.compile("([a-z]*(?:,[a-z]*)*)->([a-z]*)")


class MatrixOp(enum.Enum):
    """``trt.MatrixOperation``."""

    NONE = "NONE"
    TRANSPOSE = "TRANSPOSE"
    VECTOR = "VECTOR"


@dataclass(frozen=True, slots=True)
class MatrixMultiply(Layer):
    """Batched matrix product; batch dimensions have one rank and broadcast over size 1. Source: TensorRT operator page "MatrixMultiply"."""

    left: MatrixOp = MatrixOp.NONE
    right: MatrixOp = MatrixOp.NONE

    def run(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """``[*, M, K], [*, K, N] -> [*, M, N]``, floating."""
        floating("MatrixMultiply", a, b)
        same_dtype("MatrixMultiply", a, b)
        batch_a = a.dim() - (1 if self.left is MatrixOp.VECTOR else 2)
        batch_b = b.dim() - (1 if self.right is MatrixOp.VECTOR else 2)
        if batch_a != batch_b or batch_a < 0:
            raise InternalError(f"MatrixMultiply: expected equal numbers of batch dimensions, got {batch_a} and {batch_b}")
        left = self._operand(a, self.left, -2)
        right = self._operand(b, self.right, -1)
        result = torch.matmul(left, right) if is_real(a) else self._infer(left, right)
        if self.right is MatrixOp.VECTOR:
            result = result.squeeze(-1)
        return result.squeeze(-1 if self.right is MatrixOp.VECTOR else -2) if self.left is MatrixOp.VECTOR else result

    @staticmethod
    def _infer(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """``[*, M, N]`` on fake tensors; ``torch.matmul`` of torch 2.11 specialises symbolic batch dimensions."""
        if left.shape[-1] != right.shape[-2]:
            raise InternalError(f"MatrixMultiply: expected equal inner dimensions, got {left.shape[-1]} and {right.shape[-2]}")
        batch = left.new_empty(left.shape[:-2]) + right.new_empty(right.shape[:-2])
        return left.new_empty((*batch.shape, left.shape[-2], right.shape[-1]))

    @staticmethod
    def _operand(tensor: torch.Tensor, op: MatrixOp, vector_dim: int) -> torch.Tensor:
        match op:
            case MatrixOp.NONE:
                return tensor
            case MatrixOp.TRANSPOSE:
                return tensor.transpose(-1, -2)
            case MatrixOp.VECTOR:
                return tensor.unsqueeze(vector_dim)


@dataclass(frozen=True, slots=True)
class Einsum(Layer):
    """Sums of products along named dimensions: ``ij,jk->ik``. Source: TensorRT operator page "Einsum".

    The equation names every dimension by a lower-case letter and has an arrow. Sizes of one letter are equal or 1. TensorRT has neither
    an ellipsis nor diagonals (a letter twice in one operand).
    """

    equation: str

    def run(self, *inputs: torch.Tensor) -> torch.Tensor:
        """``[*]... -> [*]``, floating, of one dtype."""
        floating("Einsum", *inputs)
        same_dtype("Einsum", *inputs)
        terms, result = self._terms(inputs)
        sizes: dict[str, int] = {}
        for term, tensor in zip(terms, inputs, strict=True):
            for letter, size in zip(term, tensor.shape, strict=True):
                known = sizes.setdefault(letter, size)
                if statically_known_true(known == 1):
                    sizes[letter] = size
                elif statically_known_true(known != size) and not statically_known_true(size == 1):
                    raise InternalError(f"Einsum {self.equation}: expected one size of {letter!r}, got {known} and {size}")
        return torch.einsum(self.equation, *inputs) if is_real(inputs[0]) else inputs[0].new_empty([sizes[letter] for letter in result])

    def _terms(self, inputs: tuple[torch.Tensor, ...]) -> tuple[list[str], str]:
        match = _EQUATION.fullmatch(self.equation)
        if match is None:
            raise InternalError(f"Einsum: expected lower-case letters, commas and an arrow, got {self.equation!r}")
        terms, result = match[1].split(","), match[2]
        if [len(term) for term in terms] != [tensor.dim() for tensor in inputs]:
            raise InternalError(f"Einsum {self.equation}: got operands of ranks {[tensor.dim() for tensor in inputs]}")
        if any(len(set(term)) != len(term) for term in (*terms, result)) or not set(result) <= set(match[1]):
            raise InternalError(f"Einsum {self.equation}: expected each letter once in a term, and those of the result in an operand")
        return terms, result


def _pad(input: torch.Tensor, before: tuple[int, ...], after: tuple[int, ...], value: float) -> torch.Tensor:
    pairs = [side for pair in zip(reversed(before), reversed(after), strict=True) for side in pair]
    return F.pad(input, pairs, value=value) if any(pairs) else input


def _no_negative(kind: str, *paddings: tuple[int, ...]) -> None:
    if any(side < 0 for padding in paddings for side in padding):
        raise InternalError(f"{kind}: expected paddings of 0 or more, got {paddings}")


def _spatial(kind: str, *attributes: tuple[int, ...]) -> int:
    ranks = {len(attribute) for attribute in attributes}
    if len(ranks) != 1 or not ranks <= {2, 3}:
        raise InternalError(f"{kind}: expected 2 or 3 spatial dimensions, got attributes {attributes}")
    return ranks.pop()


@dataclass(frozen=True, slots=True)
class Convolution(Layer):
    """Cross-correlation with 2 or 3 spatial dimensions. Source: TensorRT operator page "Convolution"."""

    stride: tuple[int, ...]
    pre_padding: tuple[int, ...]
    post_padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1

    def run(self, input: torch.Tensor, kernel: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """``[N, C, *], [K, C / groups, *], [K] -> [N, K, *]``, floating."""
        floating("Convolution", input)
        same_dtype("Convolution", input, kernel, bias)
        rank = _spatial("Convolution", self.stride, self.pre_padding, self.post_padding, self.dilation)
        _no_negative("Convolution", self.pre_padding, self.post_padding)
        if input.dim() != rank + 2 or kernel.dim() != rank + 2:
            raise InternalError(f"Convolution: expected input and kernel of rank {rank + 2}, got {input.dim()} and {kernel.dim()}")
        if not is_real(input):
            return input.new_empty((input.shape[0], kernel.shape[0], *(self._windows(dim, input, kernel) for dim in range(rank))))
        function = F.conv2d if rank == 2 else F.conv3d
        if self.pre_padding == self.post_padding:
            return function(input, kernel, bias, self.stride, self.pre_padding, self.dilation, self.groups)
        padded = _pad(input, self.pre_padding, self.post_padding, 0.0)
        return function(padded, kernel, bias, self.stride, (0,) * rank, self.dilation, self.groups)

    def _windows(self, dim: int, input: torch.Tensor, kernel: torch.Tensor) -> int:
        """Positions of the kernel along a spatial dimension.

        torch's kernels guard on symbolic sizes to choose a memory format, so they infer nothing.
        """
        if input.shape[1] != kernel.shape[1] * self.groups:
            raise InternalError(f"Convolution: expected {kernel.shape[1] * self.groups} channels, got {input.shape[1]}")
        extent = self.dilation[dim] * (kernel.shape[2 + dim] - 1) + 1
        return (input.shape[2 + dim] + self.pre_padding[dim] + self.post_padding[dim] - extent) // self.stride[dim] + 1


@dataclass(frozen=True, slots=True)
class Deconvolution(Layer):
    """Transposed convolution, of which ``pre_padding`` and ``post_padding`` elements are cut off.

    Source: TensorRT operator page "Deconvolution". TensorRT-RTX has none in bfloat16, so a build refuses it.
    """

    stride: tuple[int, ...]
    pre_padding: tuple[int, ...]
    post_padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1

    def run(self, input: torch.Tensor, kernel: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """``[N, C, *], [C, K / groups, *], [K] -> [N, K, *]``, floating."""
        floating("Deconvolution", input)
        same_dtype("Deconvolution", input, kernel, bias)
        rank = _spatial("Deconvolution", self.stride, self.pre_padding, self.post_padding, self.dilation)
        _no_negative("Deconvolution", self.pre_padding, self.post_padding)
        if input.dim() != rank + 2 or kernel.dim() != rank + 2:
            raise InternalError(f"Deconvolution: expected input and kernel of rank {rank + 2}, got {input.dim()} and {kernel.dim()}")
        if not is_real(input):
            spatial = [self._extent(dim, input, kernel) for dim in range(rank)]
            return input.new_empty((input.shape[0], kernel.shape[1] * self.groups, *spatial))
        function = F.conv_transpose2d if rank == 2 else F.conv_transpose3d
        full = function(input, kernel, bias, self.stride, (0,) * rank, (0,) * rank, self.groups, self.dilation)
        return _pad(full, tuple(-cut for cut in self.pre_padding), tuple(-cut for cut in self.post_padding), 0.0)

    def _extent(self, dim: int, input: torch.Tensor, kernel: torch.Tensor) -> int:
        if input.shape[1] != kernel.shape[0]:
            raise InternalError(f"Deconvolution: expected {kernel.shape[0]} channels, got {input.shape[1]}")
        extent = self.dilation[dim] * (kernel.shape[2 + dim] - 1) + 1
        return (input.shape[2 + dim] - 1) * self.stride[dim] + extent - self.pre_padding[dim] - self.post_padding[dim]


class PoolingKind(enum.Enum):
    """``trt.PoolingType``."""

    MAX = "MAX"
    AVERAGE = "AVERAGE"


@dataclass(frozen=True, slots=True)
class Pooling(Layer):
    """Pooling with 2 or 3 spatial dimensions, output sizes rounded down. Source: TensorRT operator page "Pooling".

    ``count_padding`` says whether averages count padded elements. ``MAX`` ignores NaN (a window of nothing else gives
    ``-inf``), and of zeros of two signs it may give either.
    """

    op: PoolingKind
    window: tuple[int, ...]
    stride: tuple[int, ...]
    pre_padding: tuple[int, ...]
    post_padding: tuple[int, ...]
    count_padding: bool = False

    def run(self, input: torch.Tensor) -> torch.Tensor:
        """``[N, C, *] -> [N, C, *]``, floating."""
        floating("Pooling", input)
        rank = _spatial("Pooling", self.window, self.stride, self.pre_padding, self.post_padding)
        _no_negative("Pooling", self.pre_padding, self.post_padding)
        if input.dim() != rank + 2:
            raise InternalError(f"Pooling: expected input of rank {rank + 2}, got {input.dim()}")
        if not is_real(input):
            return input.new_empty((*input.shape[:2], *map(self._windows, range(rank), input.shape[2:])))
        if self.op is PoolingKind.MAX:
            lowest = float("-inf")
            numbers = torch.where(input.isnan(), torch.full_like(input, lowest), input)
            padded = _pad(numbers, self.pre_padding, self.post_padding, lowest)
            return (F.max_pool2d if rank == 2 else F.max_pool3d)(padded, self.window, self.stride)
        return self._average(input.to(torch.float32)).to(input.dtype)

    def _average(self, input: torch.Tensor) -> torch.Tensor:
        """In float32, rounded once: torch averages half precisions in 3-d nowhere on the CPU."""
        average = F.avg_pool2d if len(self.window) == 2 else F.avg_pool3d
        padded = _pad(input, self.pre_padding, self.post_padding, 0.0)
        result = average(padded, self.window, self.stride)
        if self.count_padding or padded is input:
            return result
        counted = _pad(torch.ones_like(input[:1, :1]), self.pre_padding, self.post_padding, 0.0)
        return result / average(counted, self.window, self.stride)

    def _windows(self, dim: int, size: int) -> int:
        """Number of windows along a spatial dimension."""
        return (size + self.pre_padding[dim] + self.post_padding[dim] - self.window[dim]) // self.stride[dim] + 1
