"""Rotary embedding in layers that every release has: slices, products, a difference, a sum and a concatenation."""

from __future__ import annotations

from typing import Any

import torch

from torchkiln_core.layers import RotaryEmbedding
from torchkiln_runtime.adapter.definition import Definition


def rotated(to: Definition, layer: RotaryEmbedding, input: Any, cosine: Any, sine: Any, positions: Any | None) -> Any:
    """``[B, N, S, H]`` rotated in float32 and rounded once, as the layer does."""
    if positions is not None:
        cosine, sine = (to.network.add_gather(table, positions, 0).get_output(0) for table in (cosine, sine))
    angles, width = tuple(cosine.shape)[-1], tuple(input.shape)[-1]
    wide = to.dtype(torch.float32)
    cos, sin = (to.cast(_over_heads(to, table, angles), wide) for table in (cosine, sine))
    start, step = (1, 2) if layer.interleaved else (angles, 1)
    first, second = (to.cast(_features(to, input, place, angles, step), wide) for place in (0, start))
    pair = (
        to.elementwise("SUB", to.elementwise("PROD", first, cos), to.elementwise("PROD", second, sin)),
        to.elementwise("SUM", to.elementwise("PROD", first, sin), to.elementwise("PROD", second, cos)),
    )
    if layer.interleaved:
        columns = [_reshape(to, part, (0, 0, 0, angles, 1)) for part in pair]
        result = _reshape(to, _joined(to, columns, 4), (0, 0, 0, 2 * angles))
    else:
        result = _joined(to, pair, 3)
    result = to.cast(result, input.dtype)
    if 2 * angles == width:
        return result
    return _joined(to, (result, _features(to, input, 2 * angles, width - 2 * angles, 1)), 3)


def _over_heads(to: Definition, table: Any, angles: int) -> Any:
    """``[B, S, A] -> [B, 1, S, A]``."""
    layer = to.network.add_shuffle(table)
    layer.reshape_dims = to.dims((0, 0, 1, angles))
    layer.second_transpose = to.trt.Permutation([0, 2, 1, 3])
    return layer.get_output(0)


def _features(to: Definition, input: Any, start: int, count: int, step: int) -> Any:
    """``[B, N, S, H] -> [B, N, S, count]``."""
    *rest, _ = tuple(input.shape)
    static = -1 not in rest
    layer = to.network.add_slice(
        input, to.dims((0, 0, 0, start)), to.dims((*rest, count) if static else (0, 0, 0, 0)), to.dims((1, 1, 1, step))
    )
    if not static:
        sizes = to.network.add_shape(input).get_output(0)
        kept = to.elementwise("PROD", sizes, to.constant(torch.tensor([1, 1, 1, 0])))
        layer.set_input(2, to.elementwise("SUM", kept, to.constant(torch.tensor([0, 0, 0, count]))))
    return layer.get_output(0)


def _reshape(to: Definition, tensor: Any, sizes: tuple[int, ...]) -> Any:
    """``tensor`` reshaped, with 0 for a size that stays."""
    layer = to.network.add_shuffle(tensor)
    layer.reshape_dims = to.dims(sizes)
    return layer.get_output(0)


def _joined(to: Definition, parts: Any, axis: int) -> Any:
    layer = to.network.add_concatenation(list(parts))
    layer.axis = axis
    return layer.get_output(0)
