"""Outputs that alias an argument, a buffer or one another: they are re-created by view operators after the call, as eager has them."""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Self

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
        # Not the module itself, which would do what modules do around a call.
        result: Sequence[Any] = self.module.forward(*[values[ref.kind][ref.index] for ref in self.sources])
        return result


def assemble(outputs: Sequence[OutputRef], epilogue: Epilogue | None, values: Mapping[str, Sequence[Any]]) -> list[Any]:
    """The flat outputs: ``values`` holds the live tensors and the graph's results by kind of source."""
    views = () if epilogue is None else epilogue.run(values)
    places = {**values, "alias": views}
    return [ref.value if ref.kind == "constant" else places[ref.kind][ref.index] for ref in outputs]


def only_results(outputs: Sequence[OutputRef]) -> tuple[int, ...] | None:
    """Which results of the graph the outputs are; ``None`` where one comes from elsewhere."""
    return tuple(ref.index for ref in outputs) if all(ref.kind == "result" for ref in outputs) else None


def split_aliases(
    module: torch.fx.GraphModule,
    copies: Sequence[LiveSource],
    live: Mapping[str, LiveSource],
    owners: Sequence[LiveSource | None] | None = None,
) -> tuple[tuple[OutputRef, ...], Epilogue | None]:
    """Takes aliasing outputs out of a functional graph.

    The graph's output becomes: the values to copy back (as many as ``copies``), then the results that the references name.

    Args:
        module: Its output node holds the values to copy back, then the user's outputs.
        copies: Where each leading value is copied.
        live: Placeholders that callers can see, by name.
        owners: For each of the user's outputs, the live tensor that it shares memory with. A functional graph does not say whether a value
            that is copied back is returned itself or as the tensor that it is copied to; without owners, it is the tensor.
    """
    output = next(node for node in reversed(module.graph.nodes) if node.op == "output")
    flat = list(output.args[0])
    given = {node: OutputRef(*live[node.name]) for node in module.graph.nodes if node.op == "placeholder" and node.name in live}
    mutations, user = flat[: len(copies)], flat[len(copies) :]
    writer = _Writer(_read_before_written(module.graph, mutations, copies, given))

    @functools.cache
    def bases(owner: LiveSource | None) -> Mapping[torch.fx.Node, OutputRef]:
        written = [(value, copied) for value, copied in zip(mutations, copies, strict=True) if owners is None or copied == owner]
        return {**given, **{value: OutputRef(*copied) for value, copied in written}}

    views = [_View.of(value, bases(owner)) for value, owner in zip(user, owners or [None] * len(user), strict=True)]
    shared = Counter((view.root, view.base) for view in views)
    refs: list[OutputRef] = []
    for view in views:
        if not isinstance(view.node, torch.fx.Node):
            refs.append(OutputRef("constant", value=view.node))
        elif view.node in view.bases:
            refs.append(view.bases[view.node])
        elif view.root is None or view.root is view.node or not (view.must_alias or shared[view.root, view.base] > 1):
            refs.append(writer.result(view.node))
        else:
            refs.append(writer.alias(view))
    output.args = (tuple(writer.results),)
    output.meta.pop("val", None)
    module.graph.eliminate_dead_code()
    return tuple(refs), writer.epilogue()


def _read_before_written(
    graph: torch.fx.Graph, values: Sequence[torch.fx.Node], copies: Sequence[LiveSource], given: Mapping[torch.fx.Node, OutputRef]
) -> list[torch.fx.Node]:
    """The values to copy back, with a copy of those that are a live tensor itself to which an earlier one is copied."""
    result: list[torch.fx.Node] = []
    written: set[OutputRef] = set()
    for value, copied in zip(values, copies, strict=True):
        if given.get(_root(value, given)) in written:
            with graph.inserting_before(graph.output_node()):
                clone = graph.call_function(torch.ops.aten.clone.default, (value,))
            clone.meta = dict(value.meta)
            result.append(clone)
        else:
            result.append(value)
        written.add(OutputRef(*copied))
    return result


@dataclass(frozen=True, slots=True)
class _View:
    """An output as a chain of view operators.

    Attributes:
        node: The output, or a plain value.
        root: The tensor that the chain starts from; ``None`` where the output is no tensor.
        bases: The live tensors that nodes of the graph are for this output.
    """

    node: Any
    root: torch.fx.Node | None
    bases: Mapping[torch.fx.Node, OutputRef]

    @classmethod
    def of(cls, value: Any, bases: Mapping[torch.fx.Node, OutputRef]) -> Self:
        """The chain of an output."""
        return cls(value, _root(value, bases) if _is_tensor(value) else None, bases)

    @property
    def base(self) -> OutputRef | None:
        """The live tensor that it is a view of."""
        return None if self.root is None else self.bases.get(self.root)

    @property
    def must_alias(self) -> bool:
        """Whether callers can see the tensor that it is a view of, besides in other outputs."""
        return self.base is not None or (self.root is not None and self.root.op == "placeholder")


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

    def __init__(self, results: list[torch.fx.Node]) -> None:
        self.results: list[torch.fx.Node] = results
        self._result_of: dict[torch.fx.Node, OutputRef] = {}
        self._graph = torch.fx.Graph()
        self._sources: dict[OutputRef, torch.fx.Node] = {}
        # By what they are views of too: a value may be copied back to several tensors.
        self._copied: dict[tuple[torch.fx.Node, OutputRef | None], torch.fx.Node] = {}
        self._outputs: dict[tuple[torch.fx.Node, OutputRef | None], int] = {}

    def result(self, node: torch.fx.Node) -> OutputRef:
        """Makes ``node`` a result of the graph."""
        if node not in self._result_of:
            self._result_of[node] = OutputRef("result", len(self.results))
            self.results.append(node)
        return self._result_of[node]

    def alias(self, view: _View) -> OutputRef:
        """Makes an output one of the epilogue, viewed from its root."""
        key = (view.node, view.base)
        if key not in self._outputs:
            self._copy(view.node, view)
            self._outputs[key] = len(self._outputs)
        return OutputRef("alias", self._outputs[key])

    def epilogue(self) -> Epilogue | None:
        """The graph of the aliases, or ``None`` when there are none."""
        if not self._outputs:
            return None
        self._graph.output(tuple(self._copied[key] for key in self._outputs))
        return Epilogue(torch.fx.GraphModule(torch.nn.Module(), self._graph), tuple(self._sources))

    def _copy(self, node: torch.fx.Node, view: _View) -> torch.fx.Node:
        key = (node, view.base)
        if key not in self._copied:
            if node is view.root or _viewed(node) is None:
                self._copied[key] = self._source(view.bases.get(node) or self.result(node))
            else:
                inner = {argument: self._copy(argument, view) for argument in node.all_input_nodes}
                self._copied[key] = self._graph.node_copy(node, inner.__getitem__)
        return self._copied[key]

    def _source(self, ref: OutputRef) -> torch.fx.Node:
        if ref not in self._sources:
            name = f"source_{len(self._sources)}"
            calls = next((other for other in self._graph.nodes if other.op != "placeholder"), None)
            with nullcontext() if calls is None else self._graph.inserting_before(calls):
                self._sources[ref] = self._graph.placeholder(name)
        return self._sources[ref]
