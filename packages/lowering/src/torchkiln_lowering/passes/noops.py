"""Removal of calls that change nothing."""

from __future__ import annotations

import torch
import torch.fx

from torchkiln_lowering.effects import results, storage_roots
from torchkiln_lowering.metadata import same_layout

aten = torch.ops.aten

COPIES = frozenset({aten.clone.default, aten._to_copy.default, aten.lift_fresh_copy.default})
"""Operators that return a new tensor; without one of them, the result would be the argument itself."""

VIEWS = frozenset(
    {
        aten.alias.default,
        aten.detach.default,
        aten.lift_fresh.default,
        aten.lift.default,
        aten.view.default,
        aten._unsafe_view.default,
        aten.reshape.default,
        aten.expand.default,
        aten.permute.default,
        aten.transpose.int,
        aten.t.default,
        aten.slice.Tensor,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.squeeze.default,
        aten.contiguous.default,
        aten.flatten.using_ints,
        aten.to.dtype,
        aten.to.dtype_layout,
        aten.to.device,
        aten.expand_as.default,
        aten.view_as.default,
        aten.type_as.default,
        aten.resolve_conj.default,
        aten.resolve_neg.default,
    }
)
"""Operators that return their argument, or a view of it, when it already is as asked."""

Roots = dict[torch.fx.Node, frozenset[torch.fx.Node]]

# Same metadata does not make these the identity: a transpose of a square matrix moves elements.
_MOVING = frozenset({aten.permute.default, aten.transpose.int, aten.t.default})


def remove_noops(module: torch.fx.GraphModule) -> bool:
    """Removes copies, casts and views whose result equals their argument in contents and layout.

    A result of the program stays a tensor of its own: a copy of an input never becomes the input, and two results never
    become one tensor.
    """
    graph = module.graph
    changed = False
    roots = storage_roots(graph)
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in COPIES | VIEWS or not _is_identity(node):
            continue
        source = node.args[0]
        allowed = _may_share(graph, node, source, roots) if node.target in COPIES else _may_be(graph, node, source)
        if allowed:
            node.replace_all_uses_with(source)
            graph.erase_node(node)
            changed = True
            for other, own in roots.items():
                if node in own:
                    roots[other] = (own - {node}) | roots[source]
    return changed


def _is_identity(node: torch.fx.Node) -> bool:
    source = node.args[0]
    if not isinstance(source, torch.fx.Node) or not same_layout(node.meta["val"], source.meta["val"]):
        return False
    if node.target in (aten.permute.default,):
        order = [int(dim) % len(node.args[1]) for dim in node.args[1]]  # type: ignore[union-attr,arg-type]
        return order == sorted(order)
    if node.target in _MOVING:
        return False
    # With equal size, a slice of step 1 starts at 0; a larger step keeps the size only where there is at most one element.
    return node.target is not aten.slice.Tensor or len(node.args) < 5 or bool(node.args[4] == 1)


def _may_be(graph: torch.fx.Graph, node: torch.fx.Node, source: torch.fx.Node) -> bool:
    returned = results(graph)
    return node not in returned or (source.op != "placeholder" and source not in returned)


def _may_share(graph: torch.fx.Graph, node: torch.fx.Node, source: torch.fx.Node, roots: Roots) -> bool:
    """Whether nobody outside can tell that the copy and its source share a storage."""
    returned = [value for value in results(graph) if isinstance(value, torch.fx.Node)]
    if not any(node in roots[value] for value in returned):
        return True
    taken = {root for value in returned if node not in roots[value] for root in roots[value]}
    return all(root.op == "call_function" and root not in taken for root in roots[source])
