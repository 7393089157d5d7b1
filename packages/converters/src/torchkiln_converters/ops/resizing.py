"""Enlarging by whole factors."""

from __future__ import annotations

import torch

from torchkiln_converters.arrival import Result
from torchkiln_converters.converter import converter
from torchkiln_converters.support import FLOATS, Requires, Support, fake
from torchkiln_converters.writing.shapes import expand, reshape
from torchkiln_core import Network, OpCall, Value

aten = torch.ops.aten


def _repeats_pixels(call: OpCall) -> bool:
    """Whether PyTorch, which scales indices in float32, reads each pixel the same whole number of times."""
    given = call.arguments["scale_factors"]
    sizes = tuple(zip(fake(call, "input").shape[2:], call.outputs[0].shape[2:], given or (None, None), strict=True))
    known = all(isinstance(extent, int) for size, out, _ in sizes for extent in (size, out))
    return known and all(_is_whole(*item) for item in sizes)


def _is_whole(size: int, out: int, scale: float | None) -> bool:
    if size == 0 or out % size:
        return False
    step = torch.tensor(size / out if scale is None else 1 / scale, dtype=torch.float32)
    read = (torch.arange(out, dtype=torch.float32) * step).floor().clamp(max=size - 1).to(torch.int64)
    return torch.equal(read, torch.arange(out) // (out // size))


@converter(
    aten.upsample_nearest2d.vec,
    Support(
        dtypes=FLOATS,
        ranks=range(4, 5),
        rules=(Requires("static sizes enlarged by whole factors", _repeats_pixels, "static"),),
        ignores=("output_size", "scale_factors"),
    ),
)
def upsample_nearest2d(net: Network, input: Value, result: Result) -> Value:
    """``upsample_nearest2d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors)``: ``[N, C, H, W] -> [N, C, H * f, W * g]``."""
    batch, channels, height, width = input.shape
    *_, tall, wide = result.shape
    apart = reshape(net, input, (batch, channels, height, 1, width, 1))
    return reshape(net, expand(net, apart, (batch, channels, height, tall // height, width, wide // width)), result.shape)
