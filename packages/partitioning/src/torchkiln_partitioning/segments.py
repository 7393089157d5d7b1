"""Writes the graph of a segment."""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch.fx._lazy_graph_module import _get_graph_module_cls, _use_lazy_graph_module

from torchkiln_core.errors import InternalError
from torchkiln_core.partition import Segment, SegmentKind
from torchkiln_core.rejection import target_name
from torchkiln_partitioning.draft import Draft
from torchkiln_partitioning.levels import Kind
from torchkiln_partitioning.sizes import DimOf, Literal
from torchkiln_partitioning.view import ProgramView, Role, aten


def write_segment(name: str, draft: Draft, outputs: Sequence[int], view: ProgramView) -> Segment:
    """The segment of a draft; nodes keep their names and metadata.

    Raises:
        InternalError: Something other than a tensor would cross the border of an engine.
    """
    nodes = view.nodes
    if draft.kind is Kind.ENGINE:
        crossing = [nodes[value].name for value in (*draft.inputs, *outputs) if view.sizes[value] is None]
        if crossing:
            raise InternalError(f"segment {name}: expected tensors only at the border of an engine, got {', '.join(crossing)}")
    graph = torch.fx.Graph()
    values: dict[torch.fx.Node, Any] = {}
    for position in (*draft.inputs, *draft.weights):
        values[nodes[position]] = copy_placeholder(graph, nodes[position])
    shapes: dict[DimOf, torch.fx.Node] = {}
    for position in draft.body:
        node = nodes[position]
        match draft.replaced.get(position) if draft.replaced else None:
            case Literal(value):
                values[node] = value
            case DimOf() as source:
                if source not in shapes:
                    shapes[source] = copy_shape_read(graph, node, values[nodes[source.tensor]], source.dim)
                values[node] = shapes[source]
            case None:
                values[node] = graph.node_copy(node, values.__getitem__)
    graph.output(tuple(values[nodes[position]] for position in outputs))
    body = [nodes[position] for position in draft.body]
    names = [str(node.target) for node in body if node.op == "get_attr"]
    attributes = {name: operator.attrgetter(name)(view.program.module) for name in names}
    return Segment(
        name=name,
        kind=kind_name(draft.kind),
        module=graph_module(attributes, graph, name),
        inputs=tuple(nodes[position].name for position in draft.inputs),
        weights=tuple(nodes[position].name for position in draft.weights),
        outputs=tuple(nodes[position].name for position in outputs),
        calls=tuple(
            target_name(nodes[position].target) for position in draft.computed() if view.roles[position] in (Role.CALL, Role.CHEAP)
        ),
    )


def graph_module(root: dict[str, Any], graph: torch.fx.Graph, name: str) -> torch.fx.GraphModule:
    """A module that writes the code of its graph when it first runs; the graphs of most engine segments never run."""
    with _use_lazy_graph_module(True):
        return _get_graph_module_cls()(root, graph, name)


def kind_name(kind: Kind) -> SegmentKind:
    """The kind of a segment as a partition says it."""
    return "engine" if kind is Kind.ENGINE else "torch"


def copy_placeholder(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    """A placeholder under the name of a program value, with its metadata.

    Raises:
        InternalError: The name is taken.
    """
    new = graph.create_node("placeholder", node.name, name=node.name)
    if new.name != node.name:
        raise InternalError(f"program: node name {node.name} cannot be the name of a placeholder")
    new.meta = copy.copy(node.meta)
    return new


def copy_shape_read(graph: torch.fx.Graph, node: torch.fx.Node, tensor: torch.fx.Node, dim: int) -> torch.fx.Node:
    """Reads from the shape of ``tensor``, a node of ``graph``, the number that ``node`` is in the program."""
    new = graph.create_node("call_function", aten.sym_size.int, (tensor, dim), name=node.name)
    new.meta = copy.copy(node.meta)
    return new
