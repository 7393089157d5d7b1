"""Pairs of quantize and dequantize over 16 bits, which no engine has, as pairs over 32."""

from __future__ import annotations

import torch
import torch.fx

from torchkiln_core.call import OpCall
from torchkiln_lowering.trace import without_new_guards

_NARROW = frozenset({torch.int16, torch.uint16})
_SPACE = "quantized_decomposed"


def widen_quantized(module: torch.fx.GraphModule) -> bool:
    """Quantizes to int32 where nothing but ``dequantize`` reads the 16 bits: the integers are the same."""
    changed = False
    for node in module.graph.nodes:
        if _is(node, "quantize_per") and node.meta["val"].dtype in _NARROW and all(_restores(user, node) for user in node.users):
            with without_new_guards(node.meta["val"].fake_mode):
                node.meta["val"] = torch.empty_like(node.meta["val"], dtype=torch.int32)
            for call in (node, *node.users):
                _set_dtype(call)
            changed = True
    return changed


def _is(node: torch.fx.Node, name: str) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.name.startswith(f"{_SPACE}::{name}")


def _restores(user: torch.fx.Node, source: torch.fx.Node) -> bool:
    """Whether a call reads ``source`` as what it dequantizes, and as nothing else."""
    if not (_is(user, "dequantize_per_tensor") or _is(user, "dequantize_per_channel")):
        return False
    arguments = OpCall.from_node(user).arguments
    return [name for name, value in arguments.items() if value is source] == ["input"]


def _set_dtype(call: torch.fx.Node) -> None:
    place = next(index for index, item in enumerate(call.target._schema.arguments) if item.name == "dtype")  # type: ignore[union-attr]
    if place < len(call.args):
        call.update_arg(place, torch.int32)
    else:
        call.update_kwarg("dtype", torch.int32)
