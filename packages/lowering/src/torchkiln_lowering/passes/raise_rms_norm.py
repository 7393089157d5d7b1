"""RMS normalization as written by hand, as the one operator that converters write in float32 whatever its dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from torchkiln_lowering.metadata import known_equal, same_kind
from torchkiln_lowering.passes.context import put
from torchkiln_lowering.passes.products import is_call
from torchkiln_lowering.passes.statistics import mean_square, only_reader, other_operand, quotients, rooted

aten = torch.ops.aten


def raise_rms_norm(module: torch.fx.GraphModule) -> bool:
    """``x / sqrt(mean(x^2) + eps)`` over the last dimensions, computed in fp32, as ``rms_norm``; casts to fp32 and back are taken in.

    A weight is taken in where the product with it is fp32 too: a model that rounds to a half dtype before the weight keeps doing so.
    """
    changed = False
    for node in quotients(module.graph):
        found = _match(node)
        if found is None:
            continue
        x, sizes, eps = found
        last, weight = _weighted(node, sizes)
        narrow, narrow_weight = _source(x), weight and _source(weight)
        rounded = only_reader(last, aten._to_copy.default)
        whole = rounded is not None and _is_plain_cast(rounded) and narrow is not x and _dtype(rounded) == _dtype(narrow)
        if whole and rounded is not None and (narrow_weight is None or _dtype(narrow_weight) == _dtype(narrow)):
            raised = put(module, rounded, aten.rms_norm.default, (narrow, sizes, narrow_weight, eps))
        else:
            raised = put(module, last, aten.rms_norm.default, (x, sizes, weight, eps))
        changed = raised or changed
    return changed


def _match(node: torch.fx.Node) -> tuple[torch.fx.Node, list[int], float] | None:
    """The fp32 ``x``, the static sizes of the dimensions that are normalized, and ``eps``."""
    if node.meta["val"].dtype != torch.float32:
        return None
    for factor, square, eps in rooted(node):
        found = mean_square(square)
        if found is None or _dtype(square) != torch.float32:
            continue
        x, count = found
        # A half factor is widened by the product itself.
        if factor is not x and factor is not _source(x):
            continue
        sizes = list(x.meta["val"].shape[-count:])
        if all(isinstance(size, int) for size in sizes) and same_kind(x.meta["val"], node.meta["val"]):
            return x, sizes, eps
    return None


def _weighted(node: torch.fx.Node, sizes: Sequence[Any]) -> tuple[torch.fx.Node, torch.fx.Node | None]:
    """The product with a weight ``sizes`` in fp32 that alone reads the normalized value, and the weight."""
    scaled = only_reader(node, aten.mul.Tensor)
    weight = other_operand(scaled, node)
    if scaled is None or weight is None or _dtype(weight) != torch.float32 or not known_equal(weight.meta["val"].shape, sizes):
        return node, None
    return scaled, weight


def _source(node: torch.fx.Node) -> torch.fx.Node:
    """What a plain cast from a half dtype casts, or the node itself."""
    source = node.args[0] if is_call(node, aten._to_copy.default) and _is_plain_cast(node) else None
    return source if isinstance(source, torch.fx.Node) and _dtype(source) in (torch.float16, torch.bfloat16) else node


def _is_plain_cast(node: torch.fx.Node) -> bool:
    return set(node.kwargs) == {"dtype"}


def _dtype(node: torch.fx.Node) -> torch.dtype:
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype
