"""What a graph was before a pass, kept by reference: FX replaces a node's arguments and never changes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch.fx
from torch.fx.node import map_arg

from torchkiln_lowering.effects import results
from torchkiln_lowering.metadata import same_layout


class _Entry(NamedTuple):
    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    value: Any


class Snapshot:
    """A graph as it is now, to be compared with what a pass makes of it."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self._entries = {node.name: _Entry(node.op, node.target, node.args, node.kwargs, node.meta.get("val")) for node in graph.nodes}
        self.inputs = [str(node.target) for node in graph.find_nodes(op="placeholder")]
        self.results = [value.meta["val"] if isinstance(value, torch.fx.Node) else value for value in results(graph)]

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __str__(self) -> str:
        lines = ["graph():"]
        for name, entry in self._entries.items():
            shown = ", ".join([*map(repr, entry.args), *(f"{key}={value!r}" for key, value in entry.kwargs.items())])
            lines.append(f"    {name} = {entry.op} {entry.target}({shown})")
        return "\n".join(lines)

    def differs(self, graph: torch.fx.Graph) -> bool:
        """Whether a graph is another one than it was: other nodes, another order, other arguments or metadata."""
        if len(graph.nodes) != len(self._entries):
            return True
        return any(
            node.name != name
            or node.target is not entry.target
            or node.args is not entry.args
            or node.kwargs is not entry.kwargs
            or node.meta.get("val") is not entry.value
            for node, (name, entry) in zip(graph.nodes, self._entries.items(), strict=True)
        )

    def calls(self, node: torch.fx.Node) -> bool:
        """Whether there was a node of that name that called the same."""
        entry = self._entries.get(node.name)
        return entry is not None and entry.target is node.target

    def changes(self, graph: torch.fx.Graph) -> Callable[[torch.fx.Node], bool]:
        """Says of a call whether it is new, calls something else, or it or what it reads is of another dtype or layout than before."""
        others = {node for node in graph.nodes if not self._is_same(node, node.name)}
        return lambda node: self._is_changed(node, others)

    def _is_changed(self, node: torch.fx.Node, others: set[torch.fx.Node]) -> bool:
        entry = self._entries.get(node.name)
        if entry is None or "val" not in node.meta or entry.target is not node.target or node in others:
            return True
        if entry.args is node.args and entry.kwargs is node.kwargs:
            return bool(others) and not others.isdisjoint(node.all_input_nodes)
        mine, now = _signature(node.args, node.kwargs)
        theirs, then = _signature(entry.args, entry.kwargs)
        if mine != theirs or len(now) != len(then):
            return True
        return any(not self._is_same(new, old.name) for new, old in zip(now, then, strict=True))

    def _is_same(self, node: torch.fx.Node, name: str) -> bool:
        entry = self._entries.get(name)
        meta = node.meta
        if entry is None or "val" not in meta:
            return False
        value = meta["val"]
        return value is entry.value or same_layout(value, entry.value)


def _signature(args: Any, kwargs: Any) -> tuple[str, list[torch.fx.Node]]:
    """The text of arguments with nodes left out, and those nodes in order."""
    inputs: list[torch.fx.Node] = []

    def place(source: torch.fx.Node) -> str:
        inputs.append(source)
        return "<node>"

    return repr(map_arg((args, dict(sorted(kwargs.items()))), place)), inputs
