"""Layer and group normalization as written by hand, as the operators that converters have a layer for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.fx

from torchkiln_lowering.metadata import is_contiguous, known_equal, same_layout
from torchkiln_lowering.passes.context import added, put
from torchkiln_lowering.passes.merging import RESHAPES
from torchkiln_lowering.passes.products import is_call
from torchkiln_lowering.passes.statistics import mean_of, mean_square, only_reader, other_operand, quotients, rooted, variance_of

aten = torch.ops.aten


def raise_layer_norm(module: torch.fx.GraphModule) -> bool:
    """``(x - mean(x)) / sqrt(var(x) + eps)`` over the last dimensions, with weight and bias if they follow, as ``layer_norm``.

    fp32 only: in a half dtype the operator's statistics are fp32, which the hand-written ones are not.
    """
    changed = False
    for node in quotients(module.graph):
        found = _standardized(node)
        if found is None:
            continue
        sizes = found.x.meta["val"].shape[-found.dims :]
        if not all(isinstance(size, int) for size in sizes):
            continue
        last, weight, bias = _affine(node, lambda shape, sizes=sizes: known_equal(shape, sizes))
        changed = put(module, last, aten.layer_norm.default, (found.x, list(sizes), weight, bias, found.eps)) or changed
    return changed


def raise_group_norm(module: torch.fx.GraphModule) -> bool:
    """Layer normalization without weights between reshapes to ``[N, groups, *]`` and back to ``[N, C, *]`` as ``group_norm``.

    Weight and bias per channel are taken in where they follow in fp32: in a half dtype every step of them is rounded.
    """
    changed = False
    for node in [*quotients(module.graph), *module.graph.find_nodes(op="call_function", target=aten.layer_norm.default)]:
        found = _standardized(node) or _plain_layer_norm(node)
        back = only_reader(node, *RESHAPES)
        if found is None or back is None or not _is_grouping(found, back):
            continue
        image = found.x.args[0]
        channels = image.meta["val"].shape[1]
        last, weight, bias = back, None, None
        if image.meta["val"].dtype == torch.float32:
            last, weight, bias = _affine(back, lambda shape, back=back: _is_per_channel(shape, back.meta["val"].shape))
        flat = [item and _flat(module, last, item, channels) for item in (weight, bias)]
        groups = found.x.meta["val"].shape[1]
        if put(module, last, aten.group_norm.default, (image, groups, *flat, found.eps)):
            changed = True
            continue
        for item in flat:
            if item is not None and not item.users:
                module.graph.erase_node(item)
    return changed


class _Standardized(NamedTuple):
    """``(x - mean) / sqrt(var + eps)`` over the last ``dims`` dimensions of ``x``."""

    x: Any
    dims: int
    eps: float


def _standardized(node: torch.fx.Node) -> _Standardized | None:
    for centred, spread, eps in rooted(node):
        if not is_call(centred, aten.sub.Tensor) or centred.kwargs:
            continue
        x = centred.args[0]
        mean = mean_of(centred.args[1])
        if not isinstance(x, torch.fx.Node) or mean is None or mean[0] is not x or x.meta["val"].dtype != torch.float32:
            continue
        count = mean[1]
        if not same_layout(x.meta["val"], node.meta["val"]) or not same_layout(x.meta["val"], centred.meta["val"]):
            continue
        if variance_of(spread) == (x, count) or mean_square(spread) == (centred, count):
            return _Standardized(x, count, eps)
    return None


def _plain_layer_norm(node: torch.fx.Node) -> _Standardized | None:
    """A call of ``layer_norm`` without weight and bias."""
    if not is_call(node, aten.layer_norm.default) or any(item is not None for item in node.args[2:4]) or node.kwargs:
        return None
    sizes = node.args[1]
    return _Standardized(node.args[0], len(sizes), float(node.args[4]) if len(node.args) > 4 else 1e-5)  # type: ignore[arg-type]


def _is_grouping(found: _Standardized, back: torch.fx.Node) -> bool:
    """Whether ``found`` normalizes ``[N, groups, *]`` made of a contiguous ``[N, C, *]``, and ``back`` has that shape again."""
    grouped = found.x
    image = grouped.args[0] if is_call(grouped, *RESHAPES) else None
    if not isinstance(image, torch.fx.Node):
        return False
    value, groups = image.meta["val"], grouped.meta["val"]
    if groups.dim() != found.dims + 2 or value.dim() < 2 or not is_contiguous(value):
        return False
    count, channels = groups.shape[1], value.shape[1]
    whole = isinstance(count, int) and isinstance(channels, int) and count > 0 and channels % count == 0
    return whole and known_equal(groups.shape[:1], value.shape[:1]) and same_layout(back.meta["val"], value)


def _is_per_channel(shape: Sequence[Any], image: Sequence[Any]) -> bool:
    """Whether a shape broadcasts over ``[N, C, *]`` and tells channels apart only."""
    missing = len(image) - len(shape)
    if missing not in (0, 1):
        return False
    return known_equal([*[1] * missing, *shape], [1, image[1], *[1] * (len(image) - 2)])


def _flat(module: torch.fx.GraphModule, anchor: torch.fx.Node, parameter: torch.fx.Node, channels: int) -> torch.fx.Node:
    """A parameter per channel as ``[C]``: what it is a view of, where that has this shape."""
    source = parameter.args[0] if is_call(parameter, *RESHAPES) else None
    for flat in (source, parameter):
        if isinstance(flat, torch.fx.Node) and known_equal(flat.meta["val"].shape, [channels]):
            return flat
    return added(module, anchor, aten.reshape.default, (parameter, [channels]))


def _affine(node: torch.fx.Node, fits: Any) -> tuple[torch.fx.Node, torch.fx.Node | None, torch.fx.Node | None]:
    """The last call of a normalization, and its weight and bias: a product and a sum that alone read what comes before."""
    scaled, weight = _next(node, aten.mul.Tensor, fits)
    shifted, bias = _next(scaled, aten.add.Tensor, fits)
    return shifted, weight, bias


def _next(node: torch.fx.Node, target: Any, fits: Any) -> tuple[torch.fx.Node, torch.fx.Node | None]:
    user = only_reader(node, target)
    other = other_operand(user, node)
    if user is None or other is None or other.meta["val"].dtype != torch.float32 or not fits(other.meta["val"].shape):
        return node, None
    return user, other
