"""Scaled dot product attention: backend kernels back to the one operator, and that operator in elementary ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from torchkiln_core.call import OpCall
from torchkiln_core.rejection import Requires
from torchkiln_lowering.decompositions.numbers import number_like
from torchkiln_lowering.decompositions.precision import FLOATING, as_dtype, widened
from torchkiln_lowering.decompositions.table import ONLY_FIRST, Decomposition
from torchkiln_lowering.metadata import known_equal

aten = torch.ops.aten
MaybeTensor = torch.Tensor | None


def _drops_nothing(call: OpCall) -> bool:
    return bool(call.arguments["dropout_p"] == 0)


def _masks_once(call: OpCall) -> bool:
    mask = call.arguments.get("attn_mask", call.arguments.get("attn_bias"))
    return not (call.arguments["is_causal"] and mask is not None)


def _is_aligned(call: OpCall) -> bool:
    """The CUDA flash kernel aligns a causal mask with the last key, the operator with the first: they agree on squares."""
    query, key = (call.arguments[name].meta["val"] for name in ("query", "key"))
    return not call.arguments["is_causal"] or known_equal(query.shape[-2:-1], key.shape[-2:-1])


_NO_DROPOUT = Requires("dropout_p=0", _drops_nothing)
_ONE_MASK = Requires("a mask or is_causal, not both", _masks_once)
_ALIGNED = Requires("as many queries as keys where it is causal", _is_aligned)


def _to_operator(kernel: OpOverload) -> Decomposition:
    """The decomposition of a backend's kernel: plain attention for its first result, nothing for the others."""
    names = [argument.name for argument in kernel._schema.arguments]
    others = len(kernel._schema.returns) - 1

    def attend(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        query, key, value = (given[name] for name in ("query", "key", "value"))
        out = aten.scaled_dot_product_attention.default(
            query,
            key,
            value,
            given.get("attn_mask", given.get("attn_bias")),
            is_causal=given.get("is_causal", False),
            scale=given.get("scale"),
            enable_gqa=not known_equal(query.shape[1:2], key.shape[1:2]),
        )
        return (out, *[None] * others)

    of_flash = kernel is aten._scaled_dot_product_flash_attention.default
    return Decomposition(attend, limits=(ONLY_FIRST, _NO_DROPOUT, _ALIGNED if of_flash else _ONE_MASK))


def _has_scale(call: OpCall) -> bool:
    return call.arguments["scale"] is not None or isinstance(call.arguments["query"].meta["val"].shape[-1], int)


def _knows_heads(call: OpCall) -> bool:
    shapes = (call.arguments[name].meta["val"].shape for name in ("query", "key"))
    return not call.arguments["enable_gqa"] or all(isinstance(shape[-3], int) for shape in shapes)


def _has_width(call: OpCall) -> bool:
    return bool(call.arguments["query"].meta["val"].shape[-1] != 0)


def attention(  # noqa: PLR0913 -- ATen's signature
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: MaybeTensor = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """``scaled_dot_product_attention`` of ``[*, length, width]``: fp32 inside for half inputs; a fully masked row gives zeros.

    A causal mask is aligned with the first query and key. Source: ATen/native/transformers/attention.cpp.
    """
    q, k, v = (widened(item) for item in (query, key, value))
    if enable_gqa:
        k, v = (_repeated(item, int(query.shape[-3]) // int(item.shape[-3])) for item in (k, v))
    factor = 1 / math.sqrt(int(query.shape[-1])) if scale is None else scale
    scores = aten.matmul.default(aten.mul.Scalar(q, factor), aten.transpose.int(k, -2, -1))
    if is_causal:
        rows, columns = (aten.arange.default(size, device=query.device) for size in (query.shape[-2], key.shape[-2]))
        attn_mask = aten.le.Tensor(aten.unsqueeze.default(columns, 0), aten.unsqueeze.default(rows, 1))
    if attn_mask is None:
        weights = aten._softmax.default(scores, -1, False)
    else:
        weights = aten._safe_softmax.default(_masked(scores, attn_mask), -1)
    return as_dtype(aten.matmul.default(weights, v), query.dtype)


def _masked(scores: torch.Tensor, mask: torch.Tensor) -> Any:
    if mask.dtype != torch.bool:
        return aten.add.Tensor(scores, as_dtype(mask, scores.dtype))
    return aten.where.self(mask, scores, number_like(float("-inf"), scores))


def _repeated(x: torch.Tensor, times: int) -> Any:
    """Repeats each head of ``[*, heads, length, width]`` in place."""
    *batch, heads, length, width = x.shape
    spread = aten.expand.default(aten.unsqueeze.default(x, -3), [*batch, heads, times, length, width])
    return aten.reshape.default(spread, [*batch, heads * times, length, width])


_KERNELS = (
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_fused_attention_overrideable.default,
)

_ELEMENTARY = (
    FLOATING,
    Requires("a scale, or heads of a known width", _has_scale),
    Requires("known numbers of heads where they are shared", _knows_heads),
    _ONE_MASK,
    _NO_DROPOUT,
    Requires("heads that are not empty", _has_width),
)

ATTENTION: dict[Callable[..., Any], Decomposition] = {
    **{kernel: _to_operator(kernel) for kernel in _KERNELS},
    aten.scaled_dot_product_attention.default: Decomposition(attention, limits=_ELEMENTARY),
}
