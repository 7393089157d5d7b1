"""Layers that pick, place or join elements."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torchkiln_core.errors import InternalError
from torchkiln_core.layers.checks import axis_in_range, is_real, same_dtype, same_rank
from torchkiln_core.network import Layer


class SliceMode(enum.Enum):
    """``trt.SampleMode``: what an index outside the input reads."""

    STRICT = "STRICT_BOUNDS"
    FILL = "FILL"
    CLAMP = "CLAMP"
    REFLECT = "REFLECT"
    WRAP = "WRAP"


@dataclass(frozen=True, slots=True)
class Slice(Layer):
    """Element ``i`` of a dimension is ``input[start + i * stride]``; a stride may be 0 or negative. Source: TensorRT operator page "Slice".

    Size operands override the attribute of the same place (which is then ``None``). ``FILL`` reads the ``fill`` operand outside.
    """

    start: tuple[int, ...] | None
    size: tuple[int, ...] | None
    stride: tuple[int, ...] | None
    mode: SliceMode = SliceMode.STRICT

    shape_operands: ClassVar[tuple[int, ...]] = (1, 2, 3)

    def run(
        self,
        input: torch.Tensor,
        start: Sequence[int] | None = None,
        size: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
        fill: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``[*] -> [*size]``."""
        parts = [self._part(name, getattr(self, name), given) for name, given in (("start", start), ("size", size), ("stride", stride))]
        if any(len(part) != input.dim() for part in parts):
            raise InternalError(f"Slice: expected start, size and stride of rank {input.dim()}, got {parts}")
        if fill is not None:
            same_dtype("Slice", input, fill)
        starts, sizes, strides = parts
        if not is_real(input):
            return input.new_empty(tuple(sizes))
        inside: torch.Tensor | None = None
        result = input
        for dim, (first, count, step) in enumerate(zip(starts, sizes, strides, strict=True)):
            extent = input.shape[dim]
            if (first, count, step) == (0, extent, 1):
                continue
            index = torch.arange(count, device=input.device) * step + first
            result, valid = self._pick(result, dim, index, extent)
            if valid is not None:
                valid = valid.reshape([-1 if axis == dim else 1 for axis in range(input.dim())])
                inside = valid if inside is None else inside & valid
        if inside is not None:
            outside = fill if fill is not None else torch.zeros((), dtype=input.dtype, device=input.device)
            result = torch.where(inside, result, outside)
        return result

    def _part(self, name: str, attribute: tuple[int, ...] | None, given: Sequence[int] | None) -> Sequence[int]:
        if (attribute is None) == (given is None):
            raise InternalError(f"Slice: expected {name} as an attribute or as an operand, got {attribute} and {given}")
        return attribute if attribute is not None else given or ()

    def _pick(self, source: torch.Tensor, dim: int, index: torch.Tensor, extent: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        valid = (index >= 0) & (index < extent)
        match self.mode:
            case SliceMode.STRICT:
                if not bool(valid.all()):
                    raise InternalError(f"Slice: indices {index.tolist()[:8]} leave dimension {dim} of size {extent}")
            case SliceMode.FILL:
                if extent == 0:
                    shape = list(source.shape)
                    shape[dim] = index.numel()
                    return source.new_zeros(shape), valid
                return source.index_select(dim, index.clamp(0, extent - 1)), valid
            case SliceMode.CLAMP:
                index = index.clamp(0, extent - 1)
            case SliceMode.WRAP:
                index = index % extent
            case SliceMode.REFLECT:
                period = max(1, 2 * (extent - 1))
                index = index % period
                index = torch.where(index >= extent, period - index, index)
        return source.index_select(dim, index), None


@dataclass(frozen=True, slots=True)
class Concatenation(Layer):
    """Joins tensors of one rank and dtype along an axis. Source: TensorRT operator page "Concatenation"."""

    axis: int

    def run(self, *inputs: torch.Tensor) -> torch.Tensor:
        """``[*, n_i, *]... -> [*, sum n_i, *]``."""
        same_dtype("Concatenation", *inputs)
        same_rank("Concatenation", *inputs)
        axis_in_range("Concatenation", self.axis, inputs[0].dim())
        if inputs[0].dim() == 1 and not is_real(inputs[0]):
            # torch.cat asks of each such tensor whether it is empty, which a symbolic size does not tell.
            return inputs[0].new_empty((sum(tensor.shape[0] for tensor in inputs),))
        return torch.cat(inputs, self.axis)


class GatherMode(enum.Enum):
    """``trt.GatherMode``."""

    DEFAULT = "DEFAULT"
    ELEMENT = "ELEMENT"
    ND = "ND"


def _check_indices(kind: str, indices: torch.Tensor, extent: int) -> None:
    if indices.dtype not in (torch.int32, torch.int64):
        raise InternalError(f"{kind}: expected int32 or int64 indices, got {indices.dtype}")
    if is_real(indices) and indices.numel() and not (0 <= int(indices.min()) and int(indices.max()) < extent):
        raise IndexError(f"{kind}: indices {int(indices.min())} to {int(indices.max())} leave a dimension of size {extent}")


@dataclass(frozen=True, slots=True)
class Gather(Layer):
    """Picks elements by index; indices lie in ``[0, size)``. Source: TensorRT operator page "Gather".

    ``DEFAULT``: the indices' shape replaces ``axis``. ``ELEMENT``: as ``torch.gather``. ``ND``: the last dimension of the indices
    addresses the leading dimensions of the data. ``DEFAULT`` and ``ND`` share the first ``batch_dims`` dimensions.
    """

    mode: GatherMode
    axis: int = 0
    batch_dims: int = 0

    def run(self, data: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """``[*], int [*] -> [*]``."""
        match self.mode:
            case GatherMode.DEFAULT:
                return self._default(data, indices)
            case GatherMode.ELEMENT:
                same_rank("Gather ELEMENT", data, indices)
                axis_in_range("Gather ELEMENT", self.axis, data.dim())
                _check_indices("Gather ELEMENT", indices, data.shape[self.axis])
                return torch.gather(data, self.axis, indices.to(torch.int64))
            case GatherMode.ND:
                return self._nd(data, indices)

    def _default(self, data: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        axis_in_range("Gather", self.axis, data.dim())
        _check_indices("Gather", indices, data.shape[self.axis])
        if self.batch_dims:
            raise InternalError("Gather DEFAULT: batch dimensions are not part of the record; use ND")
        wide = indices.to(torch.int64)
        flat = torch.index_select(data, self.axis, wide.reshape(-1))
        if wide.dim() == 0:
            # A view of other sizes asks which of them divides which.
            return flat.squeeze(self.axis)
        return flat.reshape(data.shape[: self.axis] + wide.shape + data.shape[self.axis + 1 :])

    def _nd(self, data: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        depth = indices.shape[-1]
        parts = []
        for dim in range(depth):
            part = indices[..., dim]
            _check_indices("Gather ND", part, data.shape[self.batch_dims + dim])
            parts.append(part.to(torch.int64))
        batch = [
            torch.arange(data.shape[dim], device=data.device).reshape([-1 if axis == dim else 1 for axis in range(indices.dim() - 1)])
            for dim in range(self.batch_dims)
        ]
        return data[(*batch, *parts)]


class ScatterMode(enum.Enum):
    """``trt.ScatterMode``."""

    ELEMENT = "ELEMENT"
    ND = "ND"


@dataclass(frozen=True, slots=True)
class Scatter(Layer):
    """A copy of the data with elements replaced; indices lie in ``[0, size)``. Source: TensorRT operator page "Scatter".

    Which update wins where an index stands twice is undefined.
    """

    mode: ScatterMode
    axis: int = 0

    def run(self, data: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
        """``[*], int [*], [*] -> [*]``."""
        same_dtype("Scatter", data, updates)
        if self.mode is ScatterMode.ELEMENT:
            same_rank("Scatter ELEMENT", data, indices, updates)
            axis_in_range("Scatter ELEMENT", self.axis, data.dim())
            _check_indices("Scatter ELEMENT", indices, data.shape[self.axis])
            return torch.scatter(data, self.axis, indices.to(torch.int64), updates)
        parts = tuple(indices[..., dim] for dim in range(indices.shape[-1]))
        for dim, part in enumerate(parts):
            _check_indices("Scatter ND", part, data.shape[dim])
        return data.index_put(tuple(part.to(torch.int64) for part in parts), updates)


@dataclass(frozen=True, slots=True)
class OneHot(Layer):
    """Places one of ``depth`` elements "on" by index, along a new dimension. Source: TensorRT operator page "OneHot".

    Indices lie in ``[0, depth)``; the values are ``[off, on]``.
    """

    depth: int
    axis: int

    def run(self, indices: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """``int [*], [2] -> [*, depth, *]``, of the values' dtype."""
        axis_in_range("OneHot", self.axis, indices.dim() + 1)
        if self.depth < 1 or values.dim() != 1 or statically_known_true(values.shape[0] != 2):
            raise InternalError(f"OneHot: expected a depth of 1 or more and values [off, on], got {self.depth} and {list(values.shape)}")
        _check_indices("OneHot", indices, self.depth)
        if not is_real(indices):
            return values.new_empty((*indices.shape[: self.axis], self.depth, *indices.shape[self.axis :]))
        places = torch.arange(self.depth, device=indices.device)
        along = [-1 if dim == self.axis else 1 for dim in range(indices.dim() + 1)]
        return torch.where(indices.unsqueeze(self.axis) == places.reshape(along), values[1], values[0])
