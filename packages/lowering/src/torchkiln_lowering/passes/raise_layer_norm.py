"""Layer normalization as written by hand, as the one operator that converters have a layer for."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from torchkiln_core.call import OpCall
from torchkiln_lowering.metadata import known_equal, same_layout
from torchkiln_lowering.passes.context import is_accepted
from torchkiln_lowering.passes.products import is_call, plus_number

aten = torch.ops.aten


def raise_layer_norm(module: torch.fx.GraphModule) -> bool:
    """``(x - mean(x)) / sqrt(var(x) + eps)`` over the last dimension, with weight and bias if they follow, as ``layer_norm``.

    fp32 only: in a half dtype the operator's statistics are fp32, which the hand-written ones are not.
    """
    changed = False
    for node in list(module.graph.nodes):
        found = _match(node)
        if found is None:
            continue
        x, eps = found
        last, weight, bias = _affine(node, x.meta["val"].shape[-1])
        with module.graph.inserting_before(last):
            new = module.graph.call_function(aten.layer_norm.default, (x, [x.meta["val"].shape[-1]], weight, bias, eps))
        new.meta = dict(last.meta)
        if is_accepted(module, new):
            last.replace_all_uses_with(new)
            changed = True
        else:
            module.graph.erase_node(new)
    return changed


def _match(node: torch.fx.Node) -> tuple[torch.fx.Node, float] | None:
    """``x`` and ``eps`` of ``centred / sqrt(variance + eps)`` or ``centred * rsqrt(variance + eps)``."""
    if not is_call(node, aten.div.Tensor, aten.mul.Tensor) or len(node.args) != 2:
        return None
    root = aten.sqrt.default if node.target is aten.div.Tensor else aten.rsqrt.default
    pairs = [node.args] if node.target is aten.div.Tensor else [node.args, node.args[::-1]]
    for centred, scale in pairs:
        shifted = plus_number(scale.args[0]) if isinstance(scale, torch.fx.Node) and is_call(scale, root) else None
        x = _centred(centred)
        if shifted is not None and x is not None and _is_variance(shifted[0], centred, x):
            return x, shifted[1]
    return None


def _centred(node: Any) -> torch.fx.Node | None:
    """``x`` of ``x - mean(x)`` over the last dimension, fp32 and of static width."""
    if not is_call(node, aten.sub.Tensor) or node.kwargs or len(node.args) != 2:
        return None
    x, mean = node.args
    if not isinstance(x, torch.fx.Node) or not _is_mean(mean, x) or not same_layout(x.meta["val"], node.meta["val"]):
        return None
    value = x.meta["val"]
    return x if value.dtype == torch.float32 and value.dim() > 0 and isinstance(value.shape[-1], int) else None


def _is_mean(node: Any, x: Any) -> bool:
    if not is_call(node, aten.mean.dim) or node.args[0] is not x:
        return False
    arguments = OpCall.from_node(node).arguments
    return _is_last(arguments["dim"], x) and arguments["keepdim"] is True and arguments["dtype"] in (None, x.meta["val"].dtype)


def _is_last(dims: Any, x: torch.fx.Node) -> bool:
    rank = x.meta["val"].dim()
    return dims is not None and [int(dim) % rank for dim in dims] == [rank - 1]


def _is_variance(node: torch.fx.Node, centred: Any, x: torch.fx.Node) -> bool:
    if is_call(node, aten.var.correction) and node.args[0] is x:
        arguments = OpCall.from_node(node).arguments
        return _is_last(arguments["dim"], x) and arguments["keepdim"] is True and arguments["correction"] == 0
    if not is_call(node, aten.mean.dim):
        return False
    square = node.args[0]
    power = is_call(square, aten.pow.Tensor_Scalar) and square.args == (centred, 2)  # type: ignore[union-attr]
    return (power or (is_call(square, aten.mul.Tensor) and square.args == (centred, centred))) and _is_mean(node, square)  # type: ignore[union-attr]


def _affine(node: torch.fx.Node, width: int) -> tuple[torch.fx.Node, torch.fx.Node | None, torch.fx.Node | None]:
    """The last call of the normalization, and its weight and bias ``[width]``: a product and a sum that alone read what comes before."""
    scaled, weight = _next(node, aten.mul.Tensor, width)
    shifted, bias = _next(scaled, aten.add.Tensor, width)
    return shifted, weight, bias


def _next(node: torch.fx.Node, target: Any, width: int) -> tuple[torch.fx.Node, torch.fx.Node | None]:
    user = next(iter(node.users), None)
    if user is None or len(node.users) != 1 or not is_call(user, target) or user.kwargs or len(user.args) != 2:
        return node, None
    other = user.args[1] if user.args[0] is node else user.args[0]
    if not isinstance(other, torch.fx.Node) or other is node:
        return node, None
    value = other.meta["val"]
    fits = isinstance(value, torch.Tensor) and value.dtype == torch.float32 and known_equal(value.shape, [width])
    return (user, other) if fits else (node, None)
