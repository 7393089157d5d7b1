"""Removal of dropout that is switched off."""

from __future__ import annotations

import operator

import torch
import torch.fx

from torchkiln_core.call import OpCall
from torchkiln_lowering.decompositions.table import used_outputs

aten = torch.ops.aten

_IDENTITIES = frozenset(
    {aten.dropout.default, aten.feature_dropout.default, aten.alpha_dropout.default, aten.feature_alpha_dropout.default}
)


def remove_dropout(module: torch.fx.GraphModule) -> bool:
    """Replaces inactive dropout by what eager returns: the input itself, or for ``native_dropout`` a copy of it.

    Source: ATen/native/Dropout.cpp.
    """
    graph = module.graph
    changed = False
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in _IDENTITIES and _is_off(OpCall.from_node(node)):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
            changed = True
        elif node.target is aten.native_dropout.default and OpCall.from_node(node).arguments["train"] is False:
            changed = _replace_native(graph, node) or changed
    return changed


def _is_off(call: OpCall) -> bool:
    return call.arguments["train"] is False or call.arguments["p"] == 0


def _replace_native(graph: torch.fx.Graph, node: torch.fx.Node) -> bool:
    if used_outputs(node) not in (frozenset(), frozenset({0})):
        return False
    for pick in [user for user in node.users if user.target is operator.getitem]:
        if pick.users:
            with graph.inserting_before(pick):
                copy = graph.call_function(aten.clone.default, (node.args[0],))
            copy.meta = dict(pick.meta)
            pick.replace_all_uses_with(copy)
        graph.erase_node(pick)
    graph.erase_node(node)
    return True
