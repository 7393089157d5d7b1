"""Rows of the layers whose results have sizes that depend on data; results are cut or padded to a size that is known."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from torchkiln_core import Network, Size, Value
from torchkiln_core.layers import NMS, BoxFormat, NonZero, Slice, SliceMode
from torchkiln_runtime.conformance.fills import edges, ties, uniform
from torchkiln_runtime.conformance.row import Operand, Row, Shape, Writer


def data_dependent_rows() -> Iterator[Row]:
    """NonZero and NMS."""
    for dtype in (torch.float32, torch.float16, torch.int32, torch.bool):
        for index in (torch.int64, torch.int32):
            case = f"indices {str(index).removeprefix('torch.')}"
            yield Row(
                "NonZero", case, dtype, (Operand(("n", 8), dtype, ties if dtype is torch.bool else edges),), _non_zero(index), exact=True
            )
    for case, format, boxes in (
        ("corners", BoxFormat.CORNER_PAIRS, ("n", 12, 4)),
        ("centres", BoxFormat.CENTER_SIZES, ("n", 12, 4)),
        ("boxes per class", BoxFormat.CORNER_PAIRS, ("n", 12, 3, 4)),
    ):
        yield _nms_row(case, NMS(3, 0.4, 0.2, torch.int64, format), boxes)


def _nms_row(case: str, layer: NMS, boxes: Shape) -> Row:
    dtype = torch.float32
    operands = (Operand(boxes, dtype, uniform(0, 1)), Operand(("n", 12, 3), dtype, uniform(0, 1)))

    def write(net: Network, boxes: Value, scores: Value) -> tuple[Value, ...]:
        counted = NMS(layer.boxes_per_class, layer.iou_threshold, layer.score_threshold, layer.dtype, layer.format, count=_count(net))
        selected, count = net.add_many(counted, boxes, scores)
        return _padded(net, selected, (scores.shape[0] * 9, 3)), count

    return Row("NMS", case, dtype, operands, write, exact=True)


def _non_zero(index: torch.dtype) -> Writer:
    def write(net: Network, value: Value) -> Value:
        return _padded(net, net.add(NonZero(index, _count(net)), value), (2, value.shape[0] * 8))

    return write


def _count(net: Network) -> torch.SymInt:
    """A size that no input determines."""
    if net.fake_mode.shape_env is None:
        raise ValueError("network: expected a shape environment")
    count = net.fake_mode.shape_env.create_unbacked_symint()
    torch._check(count >= 0)
    return count


def _padded(net: Network, value: Value, sizes: tuple[Size, ...]) -> Value:
    fill = net.constant(torch.tensor(-1, dtype=value.dtype))
    layer = Slice((0,) * len(sizes), None, (1,) * len(sizes), SliceMode.FILL)
    return net.add(layer, value, None, net.size_tensor(sizes), None, fill)
