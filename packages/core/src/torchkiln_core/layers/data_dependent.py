"""Layers whose results have sizes that depend on data: while shapes are inferred, the size is given, as the program's own symbol."""

from __future__ import annotations

import enum
from dataclasses import InitVar, dataclass
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torchkiln_core.errors import InternalError
from torchkiln_core.layers.checks import floating, is_real, same_dtype
from torchkiln_core.network import Layer

_INDICES = (torch.int32, torch.int64)


class _Counted:
    """Keeps the count that a layer is made with: no attribute of TensorRT's layer, so no field, and no part of the record."""

    def __post_init__(self, count: int | torch.SymInt | None) -> None:
        object.__setattr__(self, "_count", count)

    def _known_count(self) -> Any:
        count = getattr(self, "_count", None)
        if count is None:
            raise InternalError(f"{type(self).__name__}: expected the count of its results, whose shape is being inferred")
        return count


@dataclass(frozen=True)
class NonZero(_Counted, Layer):
    """Indices of the elements that are not zero, in row-major order; NaN is not zero. Source: TensorRT operator page "NonZero".

    TensorRT-RTX has no such layer, so a build refuses it.

    Args:
        count: The number of such elements as a symbol of the program, for inference.
    """

    dtype: torch.dtype
    count: InitVar[int | torch.SymInt | None] = None

    def run(self, input: torch.Tensor) -> torch.Tensor:
        """``[*] -> int32 or int64 [rank, count]``; rank 1 or more."""
        if self.dtype not in _INDICES or input.dim() < 1:
            raise InternalError(f"NonZero: expected int32 or int64 of rank 1 or more, got {self.dtype} of rank {input.dim()}")
        if not is_real(input):
            return input.new_empty((input.dim(), self._known_count()), dtype=self.dtype)
        return torch.nonzero(input).t().to(self.dtype).contiguous()


class BoxFormat(enum.Enum):
    """``trt.BoundingBoxFormat``: two opposite corners, or centre and size."""

    CORNER_PAIRS = "CORNER_PAIRS"
    CENTER_SIZES = "CENTER_SIZES"


@dataclass(frozen=True)
class NMS(_Counted, Layer):
    """Selects boxes by falling score that overlap no box selected before by more than a threshold. Source: TensorRT operator page "NMS".

    Per batch item, the ``box_limit`` best of those that score above ``score_threshold`` are candidates; per class, at most
    ``boxes_per_class`` are selected, each with an intersection over union of at most ``iou_threshold`` with every earlier one. The rows
    ``(batch, class, box)`` are sorted by batch item and falling score; which of equal scores comes first is undefined. TensorRT-RTX has no
    such layer, so a build refuses it.

    Args:
        count: The number of selected boxes as a symbol of the program, for inference.
    """

    boxes_per_class: int
    iou_threshold: float
    score_threshold: float
    dtype: torch.dtype
    format: BoxFormat = BoxFormat.CORNER_PAIRS
    box_limit: int = 5000
    count: InitVar[int | torch.SymInt | None] = None

    def run(self, boxes: torch.Tensor, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``[B, N, 4] or [B, N, C, 4], [B, N, C] -> int32 or int64 [count, 3], int32 []``; floating."""
        floating("NMS", boxes)
        same_dtype("NMS", boxes, scores)
        if self.dtype not in _INDICES or boxes.dtype is torch.bfloat16 or not 1 <= self.box_limit <= 5000:
            raise InternalError(f"NMS: does not take {boxes.dtype}, indices of {self.dtype}, a limit of {self.box_limit} boxes")
        if scores.dim() != 3 or boxes.dim() not in (3, 4) or statically_known_true(boxes.shape[-1] != 4):
            raise InternalError(f"NMS: expected boxes [B, N, 4] or [B, N, C, 4] and scores [B, N, C], got {boxes.shape} and {scores.shape}")
        shared = range(2 if boxes.dim() == 3 else 3)
        if any(statically_known_true(boxes.shape[dim] != scores.shape[dim]) for dim in shared):
            raise InternalError(f"NMS: expected boxes for scores of {list(scores.shape)}, got {list(boxes.shape)}")
        if not is_real(boxes):
            return boxes.new_empty((self._known_count(), 3), dtype=self.dtype), boxes.new_empty((), dtype=torch.int32)
        rows = [row for item in range(scores.shape[0]) for row in self._select(item, boxes, scores)]
        selected = torch.tensor(rows, dtype=self.dtype, device=boxes.device).reshape(-1, 3)
        return selected, torch.tensor(len(rows), dtype=torch.int32, device=boxes.device)

    def _select(self, item: int, boxes: torch.Tensor, scores: torch.Tensor) -> list[tuple[int, int, int]]:
        """The rows of one batch item."""
        classes = scores.shape[2]
        flat = scores[item].to(torch.float32).flatten()
        order = torch.argsort(flat, descending=True, stable=True)
        order = order[flat[order] > self.score_threshold][: self.box_limit]
        corners = self._corners(boxes[item].to(torch.float32))
        kept: dict[int, list[torch.Tensor]] = {}
        rows = []
        for place in order.tolist():
            box, label = divmod(place, classes)
            corner = corners[box] if corners.dim() == 2 else corners[box, label]
            earlier = kept.setdefault(label, [])
            if len(earlier) < self.boxes_per_class and all(_overlap(corner, other) <= self.iou_threshold for other in earlier):
                earlier.append(corner)
                rows.append((item, label, box))
        return rows

    def _corners(self, boxes: torch.Tensor) -> torch.Tensor:
        """``[*, 4]`` as lower and upper corner."""
        first, second = boxes[..., :2], boxes[..., 2:]
        if self.format is BoxFormat.CENTER_SIZES:
            first, second = first - second / 2, first + second / 2
        return torch.cat((torch.minimum(first, second), torch.maximum(first, second)), -1)


def _overlap(left: torch.Tensor, right: torch.Tensor) -> float:
    """Intersection over union of two boxes ``[4]`` of corners."""
    sides = (torch.minimum(left[2:], right[2:]) - torch.maximum(left[:2], right[:2])).clamp(min=0)
    common = float(sides.prod())
    union = float((left[2:] - left[:2]).prod() + (right[2:] - right[:2]).prod()) - common
    return common / union if union > 0 else 0.0
