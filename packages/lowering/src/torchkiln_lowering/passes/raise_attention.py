"""Attention as written by hand, as the one operator, where that computes exactly the same."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from torchkiln_core.call import OpCall
from torchkiln_lowering.metadata import known_equal
from torchkiln_lowering.passes.constants import constant_value
from torchkiln_lowering.passes.context import added, put
from torchkiln_lowering.passes.merging import RESHAPES, TRANSPOSES, order_of
from torchkiln_lowering.passes.products import is_call, plus, product
from torchkiln_lowering.passes.statistics import only_reader

aten = torch.ops.aten


def raise_attention(module: torch.fx.GraphModule) -> bool:
    """``softmax(scale * (q @ k^T)) @ v`` in fp32, also behind a constant mask, as ``scaled_dot_product_attention``.

    Half dtypes stay as written: the operator does not round the scores. So do masks that might hide a whole row, of which this form
    makes NaN (``-inf``) or a mean (a finite number), and the operator 0: a mask must be a constant that leaves every row something.
    """
    changed = False
    for target in (aten._softmax.default, aten.softmax.int):
        for softmax in module.graph.find_nodes(op="call_function", target=target):
            found = _match(module, softmax)
            changed = (found is not None and _raise(module, found)) or changed
    return changed


@dataclass(frozen=True, slots=True)
class _Mask:
    """What stands between the scores and their softmax: a constant, added or true where a key is seen."""

    node: torch.fx.Node | None = None
    hides: bool = False
    """Whether the node is true where a key is *not* seen."""
    causal: bool = False


@dataclass(frozen=True, slots=True)
class _Found:
    """``softmax(scale * (query @ turned) masked) @ value``, whose last call is ``last``."""

    query: torch.fx.Node
    turned: torch.fx.Node
    value: torch.fx.Node
    scale: float
    mask: _Mask
    last: torch.fx.Node


def _match(module: torch.fx.GraphModule, softmax: torch.fx.Node) -> _Found | None:
    result = softmax.meta["val"]
    scores = softmax.args[0]
    if not isinstance(scores, torch.fx.Node) or any(item.meta["val"].dtype != torch.float32 for item in (softmax, scores)):
        return None
    if result.dim() < 3 or int(OpCall.from_node(softmax).arguments["dim"]) % result.dim() != result.dim() - 1:
        return None
    last = _read_as_left(softmax)
    unmasked = _unmasked(module, scores) if last is not None else None
    if last is None or unmasked is None:
        return None
    logits, mask = unmasked
    whole = product(logits)
    inner = _operands(whole.factors[0]) if len(whole.factors) == 1 else None
    outer = _operands(last)
    if inner is None or outer is None:
        return None
    scale = whole.number
    parts = [product(item) for item in inner]
    for factor in parts:
        if len(factor.factors) == 1:
            scale *= factor.number
    query, turned = (part.factors[0] if len(part.factors) == 1 else item for part, item in zip(parts, inner, strict=True))
    found = _Found(query, turned, outer[1], scale, mask, last)
    return found if math.isfinite(scale) and _is_plain(found, result) else None


def _is_plain(found: _Found, scores: torch.Tensor) -> bool:
    """Whether all operands are fp32 with equal leading dimensions."""
    values = [node.meta["val"] for node in (found.query, found.turned, found.value, found.last)]
    ranks = all(value.dtype == torch.float32 and value.dim() == scores.dim() for value in values)
    return ranks and all(known_equal(value.shape[:-2], scores.shape[:-2]) for value in values)


def _read_as_left(softmax: torch.fx.Node) -> torch.fx.Node | None:
    """The product that alone reads the weights, as its left operand; with the view back where it is written as ``bmm`` of views."""
    last = only_reader(softmax, aten.matmul.default, aten.bmm.default)
    if last is None:
        flat = only_reader(softmax, *RESHAPES)
        inner = None if flat is None else only_reader(flat, aten.bmm.default)
        last = None if inner is None else only_reader(inner, *RESHAPES)
    operands = None if last is None else _operands(last)
    return last if operands is not None and operands[0] is softmax and operands[1] is not softmax else None


def _operands(node: torch.fx.Node) -> tuple[torch.fx.Node, torch.fx.Node] | None:
    """``a`` and ``b`` of ``a @ b``, also where it is ``bmm`` of views with the leading dimensions put together."""
    if is_call(node, aten.matmul.default, aten.bmm.default):
        left, right = node.args
        return (left, right) if isinstance(left, torch.fx.Node) and isinstance(right, torch.fx.Node) else None
    flat = node.args[0] if is_call(node, *RESHAPES) else None
    if not isinstance(flat, torch.fx.Node) or not is_call(flat, aten.bmm.default) or len(flat.users) != 1:
        return None
    shape = node.meta["val"].shape
    sources: list[torch.fx.Node] = []
    for view in flat.args:
        source = view.args[0] if isinstance(view, torch.fx.Node) and is_call(view, *RESHAPES) else None
        if not isinstance(view, torch.fx.Node) or not isinstance(source, torch.fx.Node):
            return None
        value, whole = view.meta["val"], source.meta["val"]
        if not known_equal(whole.shape[:-2], shape[:-2]) or not known_equal(whole.shape[-2:], value.shape[-2:]):
            return None
        sources.append(source)
    return (sources[0], sources[1]) if known_equal(shape[-2:], flat.meta["val"].shape[-2:]) else None


def _unmasked(module: torch.fx.GraphModule, scores: torch.fx.Node) -> tuple[torch.fx.Node, _Mask] | None:
    """The scores before a mask, and the mask; ``None`` where it is one that the operator would treat otherwise."""
    if is_call(scores, aten.masked_fill.Scalar, aten.masked_fill.Tensor):
        logits, hidden, fill = scores.args
        return _with_mask(module, scores, logits, hidden, fill, hides=True)
    if is_call(scores, aten.where.self):
        seen, logits, fill = scores.args
        return _with_mask(module, scores, logits, seen, fill, hides=False)
    terms = plus(scores)
    if terms is None:
        return scores, _Mask()
    for logits, bias in (terms, terms[::-1]):
        added_mask = constant_value(module, bias)
        if added_mask is None or added_mask.dtype != torch.float32 or added_mask.dim() < 2 or not _keeps_shape(logits, scores):
            continue
        if bool((added_mask > -math.inf).any(-1).all()) and not bool(added_mask.isnan().any()):
            return logits, _Mask(bias)
    return None


def _with_mask(
    module: torch.fx.GraphModule, scores: torch.fx.Node, logits: Any, mask: Any, fill: Any, *, hides: bool
) -> tuple[torch.fx.Node, _Mask] | None:
    """A bool mask and what stands where it hides a key: ``-inf``, or the least finite number, whose power is 0 beside any other."""
    value = constant_value(module, mask)
    number = constant_value(module, fill) if isinstance(fill, torch.fx.Node) else torch.tensor(float(fill))
    if value is None or value.dtype != torch.bool or value.dim() < 2 or not isinstance(logits, torch.fx.Node):
        return None
    seen = ~value if hides else value
    least = number is not None and number.numel() == 1 and float(number) <= torch.finfo(torch.float32).min
    if not least or not _keeps_shape(logits, scores) or not bool(seen.any(-1).all()):
        return None
    return logits, _Mask(mask, hides, _is_causal(seen, scores.meta["val"].shape[-2:]))


def _is_causal(seen: torch.Tensor, shape: Any) -> bool:
    """Whether a mask ``[1, .., L, S]`` lets a query see the keys up to its own place."""
    one = seen.numel() == seen.shape[-2:].numel() and known_equal(seen.shape[-2:], shape)
    return one and torch.equal(seen, torch.ones_like(seen).tril())


def _keeps_shape(logits: torch.fx.Node, scores: torch.fx.Node) -> bool:
    return known_equal(logits.meta["val"].shape, scores.meta["val"].shape)


def _raise(module: torch.fx.GraphModule, found: _Found) -> bool:
    made: list[torch.fx.Node] = []
    key = _turned_back(module, found, made)
    mask = None if found.mask.causal else found.mask.node
    if mask is not None and found.mask.hides:
        mask = added(module, found.last, aten.logical_not.default, (mask,))
        made.append(mask)
    arguments = (found.query, key, found.value, mask, 0.0, found.mask.causal)
    if put(module, found.last, aten.scaled_dot_product_attention.default, arguments, scale=found.scale):
        return True
    for node in reversed(made):
        module.graph.erase_node(node)
    return False


def _turned_back(module: torch.fx.GraphModule, found: _Found, made: list[torch.fx.Node]) -> torch.fx.Node:
    """``k`` of ``k^T``: what it is a transpose of, transposed otherwise where it moves more than the last two dimensions."""
    turned = found.turned
    rank = turned.meta["val"].dim()
    order, source = list(range(rank)), turned
    if is_call(turned, *TRANSPOSES):
        order, source = order_of(turned), turned.args[0]  # type: ignore[assignment]
    order[-2], order[-1] = order[-1], order[-2]
    if order == list(range(rank)):
        return source
    made.append(added(module, found.last, aten.permute.default, (source, order)))
    return made[-1]
