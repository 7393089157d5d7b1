"""Which tensors of an exported graph, in which calls may still write to their arguments, share memory that is written to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.fx
from torch._ops import HigherOrderOperator, OpOverload

from torchkiln_core.call import OpCall, source_of, writes_statistics
from torchkiln_core.size import sizes_of, symbols_of

aten = torch.ops.aten

_COPIES_OR_VIEWS = frozenset({aten.contiguous, aten.flatten, aten.ravel, aten.reshape, aten.reshape_as})
"""Operators that give a view where the strides of their argument allow it, and a copy elsewhere."""


def may_be_views(graph: torch.fx.Graph) -> list[tuple[frozenset[str], str]]:
    """Calls that copy or not, as sizes decide, where it matters since the memory is written to: the symbols, and what that is."""
    memory = WrittenMemory(graph)
    return [
        (_symbols(node.args[0]), f"whether `{node.target.overloadpacket}` copies at {source_of(node)}")
        for node in graph.nodes
        if _is_copy_or_view(node) and memory.holds(node)
    ]


def _is_copy_or_view(node: torch.fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target.overloadpacket in _COPIES_OR_VIEWS


def _symbols(node: Any) -> frozenset[str]:
    return frozenset(name for size in sizes_of(node.meta["val"].shape) for name in symbols_of(size))


def writes(node: torch.fx.Node) -> bool:
    """Whether a call writes to an argument; of calls that run graphs it is not known."""
    if isinstance(node.target, HigherOrderOperator):
        return True
    if not isinstance(node.target, OpOverload):
        return False
    return node.target._schema.is_mutable or ("val" in node.meta and writes_statistics(OpCall.from_node(node)))


class WrittenMemory:
    """Follows views back to where memory comes from.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: torch.fx.Graph) -> None:
        self._held: set[torch.fx.Node] = set()
        for node in reversed(graph.nodes):
            if writes(node):
                self._held.update(node.all_input_nodes)
            if node in self._held:
                self._held.update(_shared(node))
        for node in graph.nodes:
            if not self._held.isdisjoint(_shared(node)):
                self._held.add(node)

    def holds(self, node: torch.fx.Node) -> bool:
        """Whether some call may write to the memory of a node, or to what a view of it shows."""
        return node in self._held


def _shared(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """The arguments whose memory the result of a call may share."""
    target = node.target
    if not isinstance(target, OpOverload):
        yield from node.all_input_nodes
    elif any(result.alias_info is not None for result in target._schema.returns) or _is_composite(target):
        # A composite operator may return its argument without saying so, as dropout does in inference.
        yield from node.all_input_nodes


def _is_composite(target: OpOverload) -> bool:
    name: str = target.name()  # type: ignore[no-untyped-call]
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
