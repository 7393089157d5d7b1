"""Chains of casts, transposes and reshapes: each becomes one call from the first value to the last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from torchkiln_core.call import OpCall
from torchkiln_lowering.metadata import is_contiguous

aten = torch.ops.aten

_MANTISSA = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
"""Bits of an integer that a floating dtype holds exactly."""
RESHAPES = frozenset({aten.view.default, aten.reshape.default, aten._unsafe_view.default})
TRANSPOSES = frozenset({aten.permute.default, aten.transpose.int, aten.t.default})
"""Operators that ``order_of`` knows."""


def merge_casts(module: torch.fx.GraphModule) -> bool:
    """Casts straight to the last dtype where the one between holds every value of the first."""
    return _merge(module, frozenset({aten._to_copy.default}), _last_cast)


def merge_transposes(module: torch.fx.GraphModule) -> bool:
    """Permutes once: ``x.permute(a).permute(b)`` becomes ``x.permute([a[i] for i in b])``."""
    return _merge(module, TRANSPOSES, _one_permute)


def merge_reshapes(module: torch.fx.GraphModule) -> bool:
    """Reshapes a contiguous tensor once."""
    return _merge(module, RESHAPES, _one_view)


_Rewrite = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def _merge(
    module: torch.fx.GraphModule, kind: frozenset[Callable[..., Any]], rewrite: Callable[[torch.fx.Node, torch.fx.Node], _Rewrite | None]
) -> bool:
    """In graph order, so that a chain of any length collapses onto its first value; what nobody reads any more is dead code."""
    changed = False
    for node in module.graph.nodes:
        inner = node.args[0] if node.op == "call_function" and node.target in kind and node.args else None
        if isinstance(inner, torch.fx.Node) and inner.target in kind and isinstance(inner.args[0], torch.fx.Node):
            new = rewrite(inner, node)
            if new is not None:
                node.target, node.args, node.kwargs = new
                changed = True
    return changed


def is_exact(source: torch.dtype, target: torch.dtype) -> bool:
    """Whether ``target`` holds every value of ``source``."""
    if source in (target, torch.bool):
        return True
    if target == torch.bool or source.is_complex or target.is_complex or (source.is_floating_point and not target.is_floating_point):
        return False
    if target.is_floating_point and not source.is_floating_point:
        limits = torch.iinfo(source)
        return target in _MANTISSA and limits.bits - (limits.min < 0) <= _MANTISSA[target]
    return torch.promote_types(source, target) == target


def _last_cast(inner: torch.fx.Node, node: torch.fx.Node) -> _Rewrite | None:
    source = inner.args[0]
    plain = all(set(call.kwargs) <= {"dtype"} and call.kwargs.get("dtype") is not None for call in (inner, node))
    if not plain or not isinstance(source, torch.fx.Node) or not is_exact(source.meta["val"].dtype, inner.meta["val"].dtype):
        return None
    return aten._to_copy.default, (source,), dict(node.kwargs)


def order_of(node: torch.fx.Node) -> list[int]:
    """The permutation that a transpose makes: dimension ``i`` of the result is dimension ``order[i]`` of the argument."""
    rank = node.meta["val"].dim()
    order = list(range(rank))
    arguments = OpCall.from_node(node).arguments
    if node.target is aten.permute.default:
        return [int(dim) % rank for dim in arguments["dims"]]
    if node.target is aten.t.default:
        return order[::-1]
    if rank:
        first, second = int(arguments["dim0"]) % rank, int(arguments["dim1"]) % rank
        order[first], order[second] = order[second], order[first]
    return order


def _one_permute(inner: torch.fx.Node, node: torch.fx.Node) -> _Rewrite:
    first = order_of(inner)
    return aten.permute.default, (inner.args[0], [first[dim] for dim in order_of(node)]), {}


def _one_view(inner: torch.fx.Node, node: torch.fx.Node) -> _Rewrite | None:
    source = inner.args[0]
    if not isinstance(source, torch.fx.Node) or not all(is_contiguous(item.meta["val"]) for item in (source, inner, node)):
        return None
    target = aten.reshape.default if node.target is aten.reshape.default else aten.view.default
    return target, (source, *node.args[1:]), dict(node.kwargs)
