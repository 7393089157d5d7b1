"""Calls that the next one can do by itself: zero padding before a convolution or pooling, a bias after a matrix product."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.fx

from torchkiln_core.call import OpCall
from torchkiln_lowering.passes.context import is_accepted
from torchkiln_lowering.passes.products import is_call

aten = torch.ops.aten

_POOLS: dict[Any, int] = {
    aten.avg_pool2d.default: 2,
    aten.avg_pool3d.default: 3,
    aten.max_pool2d_with_indices.default: 2,
    aten.max_pool3d_with_indices.default: 3,
}


def absorb_padding(module: torch.fx.GraphModule) -> bool:
    """Symmetric padding as padding of the convolution (zeros), average pooling (zeros that count) or max pooling (``-inf``) that reads it.

    Max pooling keeps its own limit: at most half the window. Its indices would change, so nobody may read them.
    """
    changed = False
    for node in module.graph.nodes:
        if is_call(node, aten.convolution.default, *_POOLS):
            changed = _absorb(module, node) or changed
    return changed


def _absorb(module: torch.fx.GraphModule, node: torch.fx.Node) -> bool:
    pad = node.args[0]
    if not isinstance(pad, torch.fx.Node) or not is_call(pad, aten.constant_pad_nd.default):
        return False
    call = OpCall.from_node(node)
    spatial = _POOLS[node.target] if node.target in _POOLS else len(call.arguments["stride"])
    added = _symmetric(pad, spatial)
    before = (node.args, dict(node.kwargs))
    if added is None or not _is_neutral(pad, call):
        return False
    padding = _spread(call.arguments["padding"], spatial)
    arguments = {**call.arguments, "padding": [own + more for own, more in zip(padding, added, strict=True)]}
    if not _allowed(call, arguments, spatial):
        return False
    arguments[next(iter(arguments))] = pad.args[0]
    node.args, node.kwargs = tuple(arguments.values()), {}
    if not is_accepted(module, node):
        node.args, node.kwargs = before
        return False
    return True


def _spread(value: Any, spatial: int) -> list[int]:
    given = [value] if isinstance(value, int) else list(value)
    return given * spatial if len(given) == 1 else given


def _symmetric(pad: torch.fx.Node, spatial: int) -> list[int] | None:
    """Elements that a pad adds on both sides of each spatial dimension."""
    amounts: Any = list(pad.args[1])  # type: ignore[arg-type]
    if not all(isinstance(amount, int) and amount >= 0 for amount in amounts) or any(amounts[2 * spatial :]):
        return None
    amounts += [0] * (2 * spatial - len(amounts))
    low, high = amounts[0 : 2 * spatial : 2], amounts[1 : 2 * spatial : 2]
    return low[::-1] if low == high else None


def _is_neutral(pad: torch.fx.Node, call: OpCall) -> bool:
    fill = OpCall.from_node(pad).arguments["value"]
    arguments = call.arguments
    if call.target is aten.convolution.default:
        return bool(fill == 0 and not arguments["transposed"])
    if "count_include_pad" in arguments:
        own = any(_spread(arguments["padding"], 1))
        return bool(fill == 0 and arguments["ceil_mode"] is False and (arguments["count_include_pad"] or not own))
    indices = [user for user in call.node.users if user.args[1:] != (0,) and user.users]
    return bool(fill == -math.inf and arguments["ceil_mode"] is False and not indices)


def _allowed(call: OpCall, arguments: dict[str, Any], spatial: int) -> bool:
    if call.target is aten.convolution.default:
        return True
    if "count_include_pad" in arguments:
        arguments["count_include_pad"] = True
    return all(2 * pad <= size for pad, size in zip(arguments["padding"], _spread(arguments["kernel_size"], spatial), strict=True))


def absorb_bias(module: torch.fx.GraphModule) -> bool:
    """``mm(a, b) + bias`` with a bias ``[N]`` as ``addmm``."""
    graph = module.graph
    changed = False
    for node in list(graph.find_nodes(op="call_function", target=aten.add.Tensor)):
        if node.kwargs or len(node.args) != 2:
            continue
        for matrix, bias in (node.args, node.args[::-1]):
            if not _is_biased(matrix, bias):
                continue
            with graph.inserting_before(node):
                new = graph.call_function(aten.addmm.default, (bias, *matrix.args))
            new.meta = dict(node.meta)
            if not is_accepted(module, new):
                graph.erase_node(new)
                continue
            node.replace_all_uses_with(new)
            graph.erase_node(node)
            changed = True
            break
    return changed


def _is_biased(matrix: Any, bias: Any) -> bool:
    if not is_call(matrix, aten.mm.default) or len(matrix.users) != 1 or not isinstance(bias, torch.fx.Node):
        return False
    value, product = bias.meta["val"], matrix.meta["val"]
    fits = isinstance(value, torch.Tensor) and value.dim() == 1 and value.dtype == product.dtype and value.device == product.device
    return bool(fits and product.dtype.is_floating_point and isinstance(value.shape[0], int) and value.shape[0] == product.shape[1])
