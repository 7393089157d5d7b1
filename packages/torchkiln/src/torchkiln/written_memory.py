"""Which tensors of an exported graph, in which calls may still write to their arguments, share memory that is written to."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.fx
from torch._ops import HigherOrderOperator, OpOverload

from torchkiln_core.call import OpCall, writes_statistics


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
        self._origins: dict[torch.fx.Node, frozenset[torch.fx.Node]] = {}
        for node in graph.nodes:
            self._origins[node] = frozenset({node}).union(*(self._origins[source] for source in _shared(node)))
        written = [source for node in graph.nodes if writes(node) for source in node.all_input_nodes]
        self._written = frozenset().union(*(self._origins[source] for source in written))

    def holds(self, node: torch.fx.Node) -> bool:
        """Whether some call may write to the memory of a node, or to what a view of it shows."""
        return not self._written.isdisjoint(self._origins[node])


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
