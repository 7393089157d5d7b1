"""The graphs that higher-order calls run (branches of ``torch.cond``, bodies of loops), as programs of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch._ops import HigherOrderOperator, OpOverload

from torchkiln.constants import lift_constants
from torchkiln_core import InputKind, Partition, Program, ProgramInput, Rejection, Segment
from torchkiln_core.rejection import target_name
from torchkiln_partitioning import graphs_of


@dataclass(frozen=True, slots=True)
class _Signature:
    """Where a higher-order operator has its graphs, and which of its arguments they are called with.

    Attributes:
        graphs: Positions of the graphs.
        changing: Positions of the lists of what is another tensor in every call of a graph: carried values and rows.
        fixed: Position of the list behind them, which every call is given as it is.
    """

    graphs: tuple[int, ...]
    changing: tuple[int, ...]
    fixed: int


_SIGNATURES = {
    "cond": _Signature((1, 2), (), 3),
    "while_loop": _Signature((0, 1), (2,), 3),
    "map_impl": _Signature((0,), (1,), 2),
    "scan": _Signature((0,), (1, 2), 3),
}
"""Operators that call their graphs one after the other on plain tensors; others trace them, or batch them with ``vmap``."""
_BY_CHOICE = frozenset({"torch-executed-op", "torch-executed-module", "node-override"})
"""Rules by which a user keeps a call in PyTorch, and with it what it runs."""


@dataclass(frozen=True, slots=True)
class Body:
    """A graph that a higher-order call of a PyTorch segment runs, as a program.

    Attributes:
        call: The call.
        segment: Name of the segment.
        graph: Name of the graph among the segment's attributes, such as ``true_graph_0``.
        program: What it computes, not lowered. Its weights are weights of the program around it.
        inputs: Positions of its program's inputs among the arguments that the call passes.
        weights: For each weight that comes from the program around it, its name there.
        sources: For each argument that is a value of the program around it, its name there; the first value of what changes.
        result: How the call wants results: as it is for a single value, or as a tuple or list.
    """

    call: torch.fx.Node
    segment: str
    graph: str
    program: Program
    inputs: tuple[int, ...]
    weights: Mapping[str, str]
    sources: Mapping[str, str]
    result: Callable[[Sequence[Any]], Any]

    @property
    def path(self) -> str:
        """Its name in reports."""
        return f"{self.segment}/{self.graph}"

    def refuse(self, reason: str) -> Rejection:
        """Why it stays in PyTorch as it is."""
        return _refusal(self.call, f"{self.graph}: {reason}")


class BodyCall:
    """A body as its call runs it.

    Args:
        body: The body.
        run: What was compiled of it.
    """

    def __init__(self, body: Body, run: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
        self._inputs = body.inputs
        self._result = body.result
        self._run = run

    def __call__(self, *arguments: Any) -> Any:
        """Runs the body on the arguments of its graph; it holds the weights among them itself."""
        return self._result(self._run([arguments[index] for index in self._inputs]))


def find_bodies(partition: Partition) -> Iterator[Body | Rejection]:
    """The bodies of the higher-order calls that run in PyTorch, in call order, or why one can be no program of its own."""
    chosen = {item.node for item in partition.rejections if item.rule in _BY_CHOICE}
    for segment in partition.segments:
        for node in segment.module.graph.nodes if segment.kind == "torch" else ():
            if isinstance(node.target, HigherOrderOperator) and node.name not in chosen:
                yield from _bodies_of(node, segment, partition.program)


def higher_order_calls(partition: Partition) -> Iterator[torch.fx.Node]:
    """The calls in PyTorch segments that run graphs."""
    for segment in partition.segments:
        for node in segment.module.graph.nodes if segment.kind == "torch" else ():
            if isinstance(node.target, HigherOrderOperator) and graphs_of(node, segment.module):
                yield node


def _refusal(node: torch.fx.Node, message: str) -> Rejection:
    return Rejection.of_node(node, "body", message)


def _bodies_of(node: torch.fx.Node, segment: Segment, around: Program) -> Iterator[Body | Rejection]:
    graphs = graphs_of(node, segment.module)
    if not graphs:
        return
    target = node.target
    signature = _SIGNATURES.get(target.__name__) if isinstance(target, HigherOrderOperator) else None
    if signature is None:
        known = ", ".join(_SIGNATURES)
        yield _refusal(node, f"expected an operator that calls its graphs on plain tensors ({known}), got {target_name(target)}")
        return
    if node.kwargs.get("mutated_arg_indices"):
        yield _refusal(node, "expected graphs that only compute their results, got one that writes into its arguments")
        return
    changing = [value for position in signature.changing for value in _listed(node.args[position])]
    arguments = [*changing, *_listed(node.args[signature.fixed])]
    for position in signature.graphs:
        read = node.args[position]
        name = str(read.target) if isinstance(read, torch.fx.Node) else ""
        if name in graphs:
            yield _Reading(node, segment, around).body(name, graphs[name], arguments, len(changing))


def _listed(argument: Any) -> list[Any]:
    return list(argument) if isinstance(argument, (tuple, list)) else [argument]


class _Reading:
    """Makes bodies of one call."""

    def __init__(self, node: torch.fx.Node, segment: Segment, around: Program) -> None:
        self._node = node
        self._segment = segment
        self._around = around
        self._targets = {item.name: item.target for item in around.inputs}

    def body(self, name: str, module: torch.fx.GraphModule, arguments: Sequence[Any], changing: int) -> Body | Rejection:
        """The graph ``name`` as a program, of whose arguments the first ones change from call to call."""
        reason = _unreadable(module, len(arguments))
        if reason is not None:
            return _refusal(self._node, f"{name}: {reason}")
        copied, result = _with_flat_results(module)
        placeholders = copied.graph.find_nodes(op="placeholder")
        inputs: list[ProgramInput] = []
        taken: list[int] = []
        weights: dict[str, str] = {}
        sources: dict[str, str] = {}
        for index, (node, argument) in enumerate(zip(placeholders, arguments, strict=True)):
            if isinstance(argument, torch.fx.Node):
                sources[node.name] = argument.name
            if index >= changing and isinstance(argument, torch.fx.Node) and argument.name in self._segment.weights:
                weights[node.name] = argument.name
                inputs.append(ProgramInput(node.name, InputKind.WEIGHT, self._targets[argument.name]))
            else:
                taken.append(index)
                inputs.append(ProgramInput(node.name, InputKind.USER))
        constants = lift_constants(copied)
        inputs += [ProgramInput(constant, InputKind.WEIGHT, constant) for constant in constants]
        values = {**{inner: self._around.weights[outer] for inner, outer in weights.items()}, **constants}
        program = Program(copied, tuple(inputs), values, self._around.dims)
        return Body(self._node, self._segment.name, name, program, tuple(taken), weights, sources, result)


def _unreadable(module: torch.fx.GraphModule, arguments: int) -> str | None:
    """Why a graph is no functional program of so many arguments."""
    placeholders = module.graph.find_nodes(op="placeholder")
    if len(placeholders) != arguments:
        return f"expected a graph of {arguments} arguments, got one of {len(placeholders)}"
    for node in module.graph.nodes:
        if node.op in ("placeholder", "call_function") and "val" not in node.meta:
            return f"expected the type of every value to be known, got none for {node.name}"
        if node.op not in ("placeholder", "call_function", "get_attr", "output"):
            return f"expected calls of operators only, got {node.op} {node.name}"
        if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
            return f"expected calls that only compute their results, got {node.target}"
    [output] = module.graph.find_nodes(op="output")
    if any(isinstance(value, (tuple, list, dict)) for value in _listed(output.args[0])):
        return "expected flat results, got nested ones"
    return None


def _with_flat_results(module: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, Callable[[Sequence[Any]], Any]]:
    """A copy of a graph that returns a tuple, and what makes of it what the graph returns."""
    graph = torch.fx.Graph()
    returned = graph.graph_copy(module.graph, {})
    graph.output(tuple(_listed(returned)))
    copied = torch.fx.GraphModule(module, graph)
    return copied, tuple if isinstance(returned, tuple) else list if isinstance(returned, list) else _first


def _first(results: Sequence[Any]) -> Any:
    return results[0]
