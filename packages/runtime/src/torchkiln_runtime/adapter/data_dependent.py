"""Layers whose results have sizes that depend on data. TensorRT-RTX takes them and then finds nothing that runs them."""

from __future__ import annotations

from typing import Any

import torch

from torchkiln_core.layers import NMS, NonZero
from torchkiln_runtime.adapter.definition import Definition


def non_zero(to: Definition, layer: NonZero, input: Any) -> Any:
    """``INonZeroLayer``."""
    return to.network.add_non_zero(input, to.dtype(layer.dtype))


def nms(to: Definition, layer: NMS, boxes: Any, scores: Any) -> Any:
    """``INMSLayer``; its limits are 0-d tensors."""
    limit = to.constant(torch.tensor(layer.boxes_per_class, dtype=torch.int32))
    result = to.network.add_nms(boxes, scores, limit, to.dtype(layer.dtype))
    if result is None:
        return None
    result.bounding_box_format = getattr(to.trt.BoundingBoxFormat, layer.format.value)
    result.topk_box_limit = layer.box_limit
    for index, threshold in ((3, layer.iou_threshold), (4, layer.score_threshold)):
        result.set_input(index, to.constant(torch.tensor(threshold, dtype=torch.float32)))
    return result
