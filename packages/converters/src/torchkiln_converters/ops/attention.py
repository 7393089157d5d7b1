"""Scaled dot product attention, written as product, softmax, product, which TensorRT fuses."""

from __future__ import annotations

import math

import torch

from torchkiln_converters.converter import converter
from torchkiln_converters.support import BOOLS, FLOATS, Equals, Support, fake, same_dtype
from torchkiln_converters.writing.positions import positions
from torchkiln_converters.writing.shapes import expand, reshape, with_rank
from torchkiln_converters.writing.values import add, cast, compute_dtype, equal, less, mul, negated, number, select
from torchkiln_core import Network, OpCall, Requires, Size, Value
from torchkiln_core.layers import Cast, MatrixMultiply, MatrixOp, Reduce, ReduceOp, Softmax

aten = torch.ops.aten


def _static_width(call: OpCall) -> bool:
    return call.arguments["scale"] is not None or isinstance(fake(call, "query").shape[-1], int)


def _static_heads(call: OpCall) -> bool:
    heads = (fake(call, "query").shape[-3:-2], fake(call, "key").shape[-3:-2])
    return not call.arguments["enable_gqa"] or all(isinstance(count, int) for counts in heads for count in counts)


@converter(
    aten.scaled_dot_product_attention.default,
    Support(
        dtypes=FLOATS,
        ranks=range(2, 8),
        arguments={"attn_mask": FLOATS | BOOLS},
        rules=(
            Equals("dropout_p", 0.0),
            same_dtype("query", "key", "value"),
            Requires("a static head size", _static_width, "static"),
            Requires("a static number of heads with enable_gqa", _static_heads, "static"),
        ),
    ),
)
def scaled_dot_product_attention(
    net: Network, query: Value, key: Value, value: Value, attn_mask: Value | None, is_causal: bool, scale: float | None, enable_gqa: bool
) -> Value:
    """``scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, ...)``.

    ``[*, L, E], [*, S, E], [*, S, V], [*, L, S] -> [*, L, V]``. The query is scaled before the product, which keeps half dtypes from
    overflowing. A causal mask is aligned top left. PyTorch gives 0 for a row that a mask hides whole: the row's output is replaced
    after the last product, where it does not break the fusion.

    Of float16 scores without a mask the softmax is taken in float32: in float16 TensorRT-RTX 1.6 errs 2 to 5 times as much where scores
    reach 25, and takes as long. Behind a causal mask it makes no difference to the numbers, and in bfloat16 none is needed (H200).
    """
    if enable_gqa:
        key, value = (_repeat_heads(net, heads, query.shape[-3]) for heads in (key, value))
    rank = max(query.rank, key.rank, value.rank)
    query, key, value = (with_rank(net, item, rank) for item in (query, key, value))
    logits = net.add(MatrixMultiply(MatrixOp.NONE, MatrixOp.TRANSPOSE), _scaled(net, query, scale), key)
    if is_causal:
        logits = select(net, _causal(net, query.shape[-2], key.shape[-2]), logits, number(net, -math.inf, logits.dtype))
    if attn_mask is None:
        wide = torch.float32 if logits.dtype is torch.float16 and not is_causal else logits.dtype
        weights = cast(net, net.add(Softmax(rank - 1), cast(net, logits, wide)), logits.dtype)
        return net.add(MatrixMultiply(), weights, value)
    masked, visible = _masked(net, logits, attn_mask)
    attended = net.add(MatrixMultiply(), net.add(Softmax(masked.rank - 1), masked), with_rank(net, value, masked.rank))
    return select(net, visible, attended, number(net, 0, attended.dtype))


def _scaled(net: Network, query: Value, scale: float | None) -> Value:
    width = query.shape[-1]
    if scale is None:
        if not isinstance(width, int):
            raise TypeError(f"the head size is symbolic: {width}")
        scale = 1 / math.sqrt(width)
    wide = compute_dtype(query.dtype, scale)
    return cast(net, mul(net, cast(net, query, wide), number(net, scale, wide)), query.dtype)


def _repeat_heads(net: Network, heads: Value, wanted: Size) -> Value:
    """``[*, H, S, E] -> [*, wanted, S, E]``, each head repeated next to itself."""
    *batch, count, length, width = heads.shape
    if not (isinstance(count, int) and isinstance(wanted, int)):
        raise TypeError(f"the number of heads is symbolic: {count}, {wanted}")
    if count == wanted:
        return heads
    apart = reshape(net, heads, (*batch, count, 1, length, width))
    return reshape(net, expand(net, apart, (*batch, count, wanted // count, length, width)), (*batch, wanted, length, width))


def _causal(net: Network, rows: Size, columns: Size) -> Value:
    """Bool ``[rows, columns]``: column ``j`` is seen from row ``i`` when ``j <= i``."""
    row = reshape(net, positions(net, rows, torch.int32), (rows, 1))
    column = reshape(net, positions(net, columns, torch.int32), (1, columns))
    return negated(net, less(net, row, column))


def _masked(net: Network, logits: Value, mask: Value) -> tuple[Value, Value]:
    """The logits with the mask applied, and bool ``[*, L, 1]``: whether the mask leaves a row anything to see."""
    mask = with_rank(net, mask, logits.rank)
    axes = (mask.rank - 1,)
    if mask.dtype is torch.bool:
        seen = net.add(Reduce(ReduceOp.MAX, axes, True), net.add(Cast(torch.int32), mask))
        return select(net, mask, logits, number(net, -math.inf, logits.dtype)), net.add(Cast(torch.bool), seen)
    shown = negated(net, equal(net, mask, number(net, -math.inf, mask.dtype, mask.rank)))  # NaN shows too
    visible = cast(net, net.add(Reduce(ReduceOp.MAX, axes, True), cast(net, shown, torch.int32)), torch.bool)
    wide = torch.promote_types(mask.dtype, logits.dtype)
    return cast(net, add(net, cast(net, logits, wide), cast(net, mask, wide)), logits.dtype), visible
