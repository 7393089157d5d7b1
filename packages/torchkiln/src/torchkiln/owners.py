"""What a graph that writes in place knows of the tensors that it writes to, and a functional graph no longer does."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from torchkiln_core.call import OpCall


def owners_of(graph: torch.fx.Graph) -> list[str | None]:
    """For each result of a graph that writes in place, the placeholder whose memory it shares, by what the operators' schemas say."""
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    return [_owner(value) for value in output.args[0]]


def _owner(value: Any) -> str | None:
    node = value
    while isinstance(node, torch.fx.Node) and node.op == "call_function":
        node = _shared_argument(node)
    return node.name if isinstance(node, torch.fx.Node) and node.op == "placeholder" else None


def _shared_argument(node: torch.fx.Node) -> Any:
    """The argument whose memory the first result of a call shares, in which it may have written."""
    if node.target is operator.getitem:
        return node.args[0]
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.returns:
        return None
    shared = node.target._schema.returns[0].alias_info
    names = set() if shared is None else shared.before_set
    arguments = OpCall.from_node(node).arguments
    sharing = [item.name for item in node.target._schema.arguments if item.alias_info is not None and item.alias_info.before_set & names]
    return arguments[sharing[0]] if sharing else None


def write_apart(module: torch.fx.GraphModule) -> None:
    """Gives each write of a whole tensor a source of its own, so that no two tensors have the same value in a functional graph."""
    graph = module.graph
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        source = node.args[1]
        with graph.inserting_before(node):
            own = graph.call_function(torch.ops.aten.clone.default, (source,))
        own.meta = dict(source.meta)
        node.update_arg(1, own)
    module.recompile()
