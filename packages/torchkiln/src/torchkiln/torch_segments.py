"""How segments in PyTorch run: as part of the stitched graph, call by call, or compiled by inductor."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Collection
from typing import Any, Literal

import torch
import torch.fx
from torch.fx.node import map_arg

from torchkiln_core import InternalError

TorchSegments = Literal["eager", "inductor"]


def inlined(module: torch.fx.GraphModule, called: Collection[str]) -> torch.fx.GraphModule:
    """A stitched graph whose segments in PyTorch are written out, so that each value is freed right after its last use.

    A call of a segment would hold its arguments to its end.

    Args:
        module: Calls one submodule per segment.
        called: Submodules that stay calls.
    """
    graph = torch.fx.Graph()
    attributes: dict[str, Any] = {name: getattr(module, name) for name in called}
    values: dict[torch.fx.Node, Any] = {}
    for node in module.graph.nodes:
        if node.op == "call_module" and node.target not in called:
            values[node] = _write_out(str(node.target), module.get_submodule(str(node.target)), node, (graph, attributes, values))
        elif node.target is operator.getitem and isinstance(values.get(node.args[0]), tuple):
            values[node] = values[node.args[0]][node.args[1]]
        else:
            values[node] = graph.node_copy(node, values.__getitem__)
    return torch.fx.GraphModule(attributes, graph, "Stitched")


def held_name(segment: str, attribute: str) -> str:
    """How the stitched graph calls what a segment that is written out holds."""
    return f"{segment}_{attribute.replace('.', '_')}"


def _write_out(
    name: str,
    segment: torch.nn.Module,
    call: torch.fx.Node,
    into: tuple[torch.fx.Graph, dict[str, Any], dict[torch.fx.Node, Any]],
) -> tuple[Any, ...]:
    """Writes the calls of a segment into the graph; its results."""
    graph, attributes, outer = into
    arguments = iter(call.args)
    inner: dict[torch.fx.Node, Any] = {}
    for node in _graph_of(segment).nodes:
        match node.op:
            case "placeholder":
                inner[node] = map_arg(next(arguments), outer.__getitem__)
            case "get_attr":
                held = held_name(name, str(node.target))
                attributes[held] = operator.attrgetter(str(node.target))(segment)
                inner[node] = graph.get_attr(held)
                inner[node].meta = copy.copy(node.meta)
            case "output":
                return tuple(map_arg(node.args[0], inner.__getitem__))
            case _:
                inner[node] = graph.node_copy(node, inner.__getitem__)
    raise InternalError(f"segment {name}: expected a graph with an output, got one without")


def _graph_of(segment: torch.nn.Module) -> torch.fx.Graph:
    if not isinstance(segment, torch.fx.GraphModule):
        raise InternalError(f"segment: expected a graph module, got {type(segment).__name__}")
    return segment.graph


def by_inductor(segment: torch.fx.GraphModule) -> Callable[..., Any]:
    """A segment that inductor compiles when it first runs. Random numbers are those of eager."""
    values = [node.meta.get("val") for node in segment.graph.find_nodes(op="placeholder")]
    sizes = [size for value in values for size in (value.shape if isinstance(value, torch.Tensor) else (value,))]
    dynamic = any(isinstance(size, (torch.SymInt, torch.SymFloat)) for size in sizes)
    compiled: Callable[..., Any] = torch.compile(_plain(segment), backend="inductor", dynamic=dynamic, options={"fallback_random": True})
    return compiled


def _plain(segment: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The segment as a module with its code written, which Dynamo can read."""
    return torch.fx.GraphModule(segment, segment.graph, segment.__class__.__name__)
