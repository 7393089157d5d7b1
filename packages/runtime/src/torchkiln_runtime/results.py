"""Where the results of a run are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch._C._dynamo.guards import _empty_strided_cuda  # type: ignore[attr-defined]
from torch._prims_common import make_contiguous_strides_for

from torchkiln_runtime.shapes import Shapes


@dataclass(frozen=True, slots=True)
class ResultForm:
    """The results of an engine at one set of input shapes.

    Attributes:
        shapes: ``[*]`` of each.
        layouts: Shape, strides and dtype of each.
    """

    shapes: Shapes
    layouts: tuple[tuple[tuple[int, ...], tuple[int, ...], torch.dtype], ...]

    @classmethod
    def of(cls, shapes: Shapes, dtypes: Sequence[torch.dtype]) -> Self:
        """Contiguous tensors of these shapes and dtypes."""
        return cls(shapes, tuple((shape, make_contiguous_strides_for(shape), dtype) for shape, dtype in zip(shapes, dtypes, strict=True)))

    def allocate(self) -> tuple[torch.Tensor, ...]:
        """Uninitialised tensors on the current GPU, as inductor's code makes them: at half the time of ``torch.empty``."""
        return tuple([_empty_strided_cuda(*layout) for layout in self.layouts])
