"""Common subexpressions: equal calls become one."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from torchkiln_lowering.effects import is_shareable, is_view, results, sharers


def share_equal_calls(module: torch.fx.GraphModule) -> bool:
    """Merges equal deterministic calls. Two results of the program stay two tensors."""
    graph = module.graph
    first: dict[Any, torch.fx.Node] = {}
    changed = False
    returned = {value for value in results(graph) if isinstance(value, torch.fx.Node)}
    escaping = set(sharers(graph))
    for node in list(graph.nodes):
        # Calls whose sizes depend on data have symbols of their own, which what follows refers to.
        if not is_shareable(node) or node.meta.get("unbacked_bindings"):
            continue
        kept = first.setdefault(_key(node), node)
        if kept is node or _would_join(kept, node, escaping, returned):
            continue
        node.replace_all_uses_with(kept)
        graph.erase_node(node)
        if node in escaping:
            escaping.add(kept)
        changed = True
    return changed


def _would_join(kept: torch.fx.Node, node: torch.fx.Node, escaping: set[torch.fx.Node], returned: set[torch.fx.Node]) -> bool:
    if is_view(node):
        return kept in returned and node in returned
    return kept in escaping and node in escaping


def _key(node: torch.fx.Node) -> Any:
    return node.target, _frozen(node.args), _frozen(node.kwargs)


def _frozen(value: Any) -> Any:
    """An argument as something to compare: the type and text keep 1, 1.0 and True apart, as well as 0.0 and -0.0."""
    if isinstance(value, torch.fx.Node):
        return value
    if isinstance(value, (tuple, list)):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return tuple((key, _frozen(value[key])) for key in sorted(value))
    return type(value), repr(value)
