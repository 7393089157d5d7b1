"""Rotary embedding, by the operator that PyTorch ships under the name of ONNX's: its definition is that of TensorRT's layer."""

from __future__ import annotations

from typing import Any

import torch
import torch.onnx.ops  # registers the operator
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torchkiln_converters.converter import converter
from torchkiln_converters.ops.indexing import from_start
from torchkiln_converters.support import FLOATS, INTEGERS, Support, fake, same_dtype
from torchkiln_converters.writing.shapes import permute, reshape
from torchkiln_core import Network, OpCall, Requires, Value
from torchkiln_core.layers import RotaryEmbedding


def _head_size(call: OpCall) -> int | None:
    """The features of a head, where they are known and heads divide a tensor of rank 3."""
    x = fake(call, "x")
    width: Any = x.shape[-1]
    heads: Any = 1 if x.dim() == 4 else call.arguments["num_heads"]
    known = isinstance(width, int) and isinstance(heads, int)
    return width // heads if known and heads > 0 and width % heads == 0 else None


def _features(call: OpCall) -> int:
    """The features of a head that take part; 0 where they are no pairs or more than it has."""
    head, some = _head_size(call), call.arguments["rotary_embedding_dim"]
    if head is None or not isinstance(some, int):
        return 0
    count = some or head
    return count if 0 < count <= head and count % 2 == 0 else 0


def _tables_fit(call: OpCall) -> bool:
    x, cosine, sine = (fake(call, name) for name in ("x", "cos_cache", "sin_cache"))
    angles = _features(call) // 2
    if call.arguments["position_ids"] is None:
        return all(_has_shape(table, (x.shape[0], x.shape[-2], angles)) for table in (cosine, sine))
    positions = fake(call, "position_ids")
    return _has_shape(positions, (x.shape[0], x.shape[-2])) and all(
        _has_shape(table, (cosine.shape[0], angles)) for table in (cosine, sine)
    )


def _has_shape(tensor: torch.Tensor, shape: tuple[Any, ...]) -> bool:
    """Whether a shape is known to be this one: what is open fails in PyTorch only when it runs."""
    return tensor.dim() == len(shape) and all(statically_known_true(have == want) for have, want in zip(tensor.shape, shape, strict=True))


@converter(
    torch.ops.onnx.RotaryEmbedding.opset23,
    Support(
        dtypes=FLOATS,
        ranks=range(3, 5),
        arguments={"position_ids": INTEGERS},
        rules=(
            same_dtype("x", "cos_cache", "sin_cache"),
            Requires("a static head size", lambda call: _head_size(call) is not None, "static"),
            Requires("a number of pairs of features that a head has", lambda call: _features(call) > 0),
            Requires("tables [B, S, dim / 2], or [count, dim / 2] with position_ids [B, S]", _tables_fit),
        ),
    ),
)
def rotary_embedding(
    net: Network,
    x: Value,
    cos_cache: Value,
    sin_cache: Value,
    position_ids: Value | None,
    interleaved: bool,
    num_heads: int,
    rotary_embedding_dim: int,
) -> Value:
    """``RotaryEmbedding.opset23(Tensor x, Tensor cos_cache, Tensor sin_cache, Tensor? position_ids=None, *, ...)``, one layer.

    ``[B, N, S, H]``, or ``[B, S, N * H]`` with ``num_heads``. Half dtypes are rotated in float32
    and rounded once, where PyTorch rounds each product.
    """
    if position_ids is not None:
        position_ids = from_start(net, position_ids, cos_cache.shape[0])
    layer = RotaryEmbedding(interleaved, rotary_embedding_dim)
    if x.rank == 4:
        return net.add(layer, x, cos_cache, sin_cache, position_ids)
    batch, length, width = x.shape
    if not isinstance(width, int):
        raise TypeError(f"the head size is symbolic: {width}")
    apart = permute(net, reshape(net, x, (batch, length, num_heads, width // num_heads)), (0, 2, 1, 3))
    return reshape(net, permute(net, net.add(layer, apart, cos_cache, sin_cache, position_ids), (0, 2, 1, 3)), x.shape)
