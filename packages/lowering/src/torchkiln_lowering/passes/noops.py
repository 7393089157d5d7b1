"""Removal of calls that change nothing."""

from __future__ import annotations

import sys

import torch
import torch.fx

from torchkiln_core.call import OpCall, decided_by_data
from torchkiln_lowering.effects import may_alias, results, sharers
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

_MOST_ORIGINS = 64
"""Copies of a value whose storage may come from more nodes stay, so that the pass takes linear time."""
# Same metadata does not make these the identity: a transpose of a square matrix moves elements.
_MOVING = frozenset({aten.permute.default, aten.transpose.int, aten.t.default})


def remove_noops(module: torch.fx.GraphModule) -> bool:
    """Removes copies, casts and views whose result equals their argument in contents and layout.

    A result of the program stays a tensor of its own: a copy of an input never becomes the input, and two results never
    become one tensor.
    """
    graph = module.graph
    outside = _Outside(graph)
    unproven = decided_by_data(graph)
    changed = False
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in COPIES | VIEWS or not _is_identity(node):
            continue
        if node.target is aten.slice.Tensor and node in unproven and not _keeps_all(node):
            continue
        source = node.args[0]
        if outside.cannot_tell(node, source):
            outside.replace(node, source)
            node.replace_all_uses_with(source)
            graph.erase_node(node)
            changed = True
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


def _keeps_all(node: torch.fx.Node) -> bool:
    """Whether a slice of step 1 shows all elements by its bounds: of a size that data decides, the metadata may be what a check says."""
    arguments = OpCall.from_node(node).arguments
    return arguments["start"] in (None, 0) and (arguments["end"] is None or _is_endless(arguments["end"]))


def _is_endless(end: object) -> bool:
    return isinstance(end, int) and end >= sys.maxsize


class _Outside:
    """What a caller can see of storages: which results are the same tensor, and which share memory with another or with an input."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self._results = {value for value in results(graph) if isinstance(value, torch.fx.Node)}
        self._sharers = sharers(graph)

    def cannot_tell(self, node: torch.fx.Node, source: torch.fx.Node) -> bool:
        """Whether nobody outside notices that ``source`` stands for ``node``."""
        if node.target not in COPIES:
            return node not in self._results or (source.op != "placeholder" and source not in self._results)
        mine = self._sharers.get(node, 0)
        if not mine:
            return True
        origins = _origins(source)
        # What results share with an origin of the source, they would share with this one.
        return bool(origins) and all(item.op == "call_function" and not self._sharers.get(item, 0) & ~mine for item in origins)

    def replace(self, node: torch.fx.Node, source: torch.fx.Node) -> None:
        """Takes note that ``source`` stands for ``node`` from now on."""
        bits = self._sharers.pop(node, 0)
        stack = [source] if bits else []
        while stack:
            item = stack.pop()
            known = self._sharers.get(item, 0)
            if known | bits != known:
                self._sharers[item] = known | bits
                stack.extend(may_alias(item))
        if node in self._results:
            self._results.add(source)


def _origins(source: torch.fx.Node) -> list[torch.fx.Node]:
    """The node and all whose storage it may share; nothing where they are too many to look at."""
    found = [source]
    seen = {source}
    for node in found:
        for item in may_alias(node):
            if item not in seen:
                seen.add(item)
                found.append(item)
        if len(found) > _MOST_ORIGINS:
            return []
    return found
