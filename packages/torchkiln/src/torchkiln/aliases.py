"""Outputs that alias an argument, a buffer or one another: they are re-created by view operators after the call, as eager has them."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.fx

SourceKind = Literal["argument", "buffer", "result", "alias", "constant"]
LiveSource = tuple[Literal["argument", "buffer"], int]
"""A tensor that callers can see: a flat argument by position, or a mutated buffer by index."""


@dataclass(frozen=True, slots=True)
class OutputRef:
    """Where a flat output comes from: a flat argument, a mutated buffer, a result of the graph, an epilogue output, or a plain value."""

    kind: SourceKind
    index: int = 0
    value: bool | int | float | str | None = None


@dataclass(frozen=True, slots=True)
class Epilogue:
    """View operators that run after the graph. Placeholders of ``module`` stand for ``sources``, in order."""

    module: torch.fx.GraphModule
    sources: tuple[OutputRef, ...]

    def run(self, values: Mapping[str, Sequence[Any]]) -> Sequence[Any]:
        """The aliasing outputs, made from live arguments, buffers and results."""
        result: Sequence[Any] = self.module(*(values[ref.kind][ref.index] for ref in self.sources))
        return result


def assemble(outputs: Sequence[OutputRef], epilogue: Epilogue | None, values: Mapping[str, Sequence[Any]]) -> list[Any]:
    """The flat outputs: ``values`` holds the live tensors and the graph's results by kind of source."""
    views = () if epilogue is None else epilogue.run(values)
    places = {**values, "alias": views}
    return [ref.value if ref.kind == "constant" else places[ref.kind][ref.index] for ref in outputs]


def split_aliases(
    module: torch.fx.GraphModule, copies: Sequence[tuple[str, int]], live: Mapping[str, LiveSource]
) -> tuple[tuple[OutputRef, ...], Epilogue | None]:
    """Takes aliasing outputs out of a functional graph.

    The graph's output becomes: the values to copy back (as many as ``copies``), then the results that the references name.

    Args:
        module: Its output node holds the values to copy back, then the user's outputs.
        copies: Where each leading value is copied: ``("buffer", index)`` or ``("input", flat position)``.
        live: Placeholders that callers can see, by name.
    """
    output = next(node for node in reversed(module.graph.nodes) if node.op == "output")
    flat = list(output.args[0])
    mutations, user = flat[: len(copies)], flat[len(copies) :]
    bases: dict[torch.fx.Node, OutputRef] = {}
    for node in module.graph.nodes:
        if node.op == "placeholder" and node.name in live:
            bases[node] = OutputRef(*live[node.name])
    for value, (kind, index) in zip(mutations, copies, strict=True):
        bases[value] = OutputRef("buffer" if kind == "buffer" else "argument", index)
    writer = _Writer(list(mutations), bases)
    roots = {value: _root(value, bases) for value in user if _is_tensor(value)}
    shared = Counter(roots.values())
    refs: list[OutputRef] = []
    for value in user:
        if not isinstance(value, torch.fx.Node):
            refs.append(OutputRef("constant", value=value))
        elif value in bases:
            refs.append(bases[value])
        elif not _is_tensor(value) or roots[value] is value or not _must_alias(roots[value], bases, shared):
            refs.append(writer.result(value))
        else:
            refs.append(writer.alias(value, roots[value]))
    output.args = (tuple(writer.results),)
    output.meta.pop("val", None)
    module.graph.eliminate_dead_code()
    return tuple(refs), writer.epilogue()


def _must_alias(root: torch.fx.Node, bases: Mapping[torch.fx.Node, OutputRef], shared: Counter[torch.fx.Node]) -> bool:
    return root in bases or root.op == "placeholder" or shared[root] > 1


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.fx.Node) and isinstance(value.meta.get("val"), torch.Tensor)


def _root(node: torch.fx.Node, bases: Mapping[torch.fx.Node, OutputRef]) -> torch.fx.Node:
    """The tensor that a chain of view operators starts from."""
    while node not in bases and (parent := _viewed(node)) is not None:
        node = parent
    return node


def _viewed(node: torch.fx.Node) -> torch.fx.Node | None:
    """The tensor that ``node`` is a view of, if it is one."""
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], torch.fx.Node):
        return None
    if node.target is operator.getitem:
        source = node.args[0]
        return _viewed(source) if isinstance(source.meta.get("val"), (list, tuple)) else None
    if isinstance(node.target, torch._ops.OpOverload):
        returns = node.target._schema.returns
        if len(returns) == 1 and returns[0].alias_info is not None and not returns[0].alias_info.is_write:
            return node.args[0]
    return None


class _Writer:
    """Collects the graph's results and writes the epilogue."""

    def __init__(self, results: list[torch.fx.Node], bases: Mapping[torch.fx.Node, OutputRef]) -> None:
        self.results: list[torch.fx.Node] = results
        self._bases = bases
        self._result_of: dict[torch.fx.Node, OutputRef] = {}
        self._graph = torch.fx.Graph()
        self._sources: dict[torch.fx.Node, tuple[torch.fx.Node, OutputRef]] = {}
        self._copied: dict[torch.fx.Node, torch.fx.Node] = {}
        self._outputs: dict[torch.fx.Node, int] = {}

    def result(self, node: torch.fx.Node) -> OutputRef:
        """Makes ``node`` a result of the graph."""
        if node not in self._result_of:
            self._result_of[node] = OutputRef("result", len(self.results))
            self.results.append(node)
        return self._result_of[node]

    def alias(self, node: torch.fx.Node, root: torch.fx.Node) -> OutputRef:
        """Makes ``node`` an output of the epilogue, viewed from ``root``."""
        if node not in self._outputs:
            self._copy(node, root)
            self._outputs[node] = len(self._outputs)
        return OutputRef("alias", self._outputs[node])

    def epilogue(self) -> Epilogue | None:
        """The graph of the aliases, or ``None`` when there are none."""
        if not self._outputs:
            return None
        self._graph.output(tuple(self._copied[node] for node in self._outputs))
        return Epilogue(torch.fx.GraphModule(torch.nn.Module(), self._graph), tuple(ref for _, ref in self._sources.values()))

    def _copy(self, node: torch.fx.Node, root: torch.fx.Node) -> torch.fx.Node:
        if node in self._copied:
            return self._copied[node]
        if node is root or _viewed(node) is None:
            copied = self._source(node)
        else:
            for argument in node.all_input_nodes:
                self._copy(argument, root)
            copied = self._graph.node_copy(node, lambda argument: self._copied[argument])
        self._copied[node] = copied
        return copied

    def _source(self, node: torch.fx.Node) -> torch.fx.Node:
        ref = self._bases.get(node) or self.result(node)
        name = f"source_{len(self._sources)}"
        calls = next((other for other in self._graph.nodes if other.op != "placeholder"), None)
        if calls is None:
            placeholder = self._graph.placeholder(name)
        else:
            with self._graph.inserting_before(calls):
                placeholder = self._graph.placeholder(name)
        self._sources[node] = (placeholder, ref)
        return placeholder
