"""Graphs from JSON data. Names and targets are checked first: FX writes them into source code that it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.fx

from torchkiln_core import PlanFormatError
from torchkiln_runtime.kiln_file.arguments import decode_argument
from torchkiln_runtime.kiln_file.fields import take, take_list, take_text
from torchkiln_runtime.kiln_file.names import is_identifier, is_qualified_name
from torchkiln_runtime.kiln_file.targets import function_named
from torchkiln_runtime.kiln_file.tensor_reader import TensorReader


def read_graph(
    record: Any, title: str, tensors: TensorReader, submodules: Mapping[str, torch.nn.Module] | None = None
) -> torch.fx.GraphModule:
    """The graph that ``GraphWriter.write`` described, linted. Nodes carry ``stack_trace`` and ``nn_module_stack``, but no ``val``.

    Args:
        record: What was read.
        title: Class name of the module, and what errors call it.
        tensors: Has the tensors that the graph reads.
        submodules: What ``call_module`` may call.

    Raises:
        PlanFormatError: The record does not describe a valid graph.
    """
    root: dict[str, Any] = dict(submodules or {})
    for name, place in take(record, "attributes", dict).items():
        if not is_qualified_name(name) or name in root:
            raise PlanFormatError(f"graph {title}: {name[:100]!r} cannot be the name of a tensor")
        root[name] = tensors.at(place)
    graph = torch.fx.Graph()
    nodes: dict[str, torch.fx.Node] = {}
    traces = take_list(record, "traces", str)
    for item in take_list(record, "nodes", dict):
        node = _read_node(item, graph, nodes, root)
        _read_place(item, node, traces)
    if not nodes or node.op != "output":
        raise PlanFormatError(f"graph {title}: expected it to end with an output node")
    module = torch.fx.GraphModule(root, graph, class_name=title)
    module.graph.lint()
    return module


def _read_node(item: Any, graph: torch.fx.Graph, nodes: dict[str, torch.fx.Node], root: Mapping[str, Any]) -> torch.fx.Node:
    op, name = take(item, "op", str), take(item, "name", str)
    if not is_identifier(name) or name in nodes:
        raise PlanFormatError(f"node {name[:100]!r}: expected an identifier that no node before it has")
    target = _read_target(op, take(item, "target", str), root)
    args = tuple(decode_argument(arg, nodes) for arg in take(item, "args", list))
    kwargs = {key: decode_argument(arg, nodes) for key, arg in take(item, "kwargs", dict).items()}
    if not all(map(is_identifier, kwargs)):
        raise PlanFormatError(f"node {name}: a keyword is not an identifier")
    node = graph.create_node(op, target, args, kwargs, name=name)
    if node.name != name:
        # FX renames what looks like a builtin; other records refer to nodes by the name that they were saved with.
        node.name = name
    nodes[name] = node
    return node


def _read_target(op: str, target: str, root: Mapping[str, Any]) -> str | Callable[..., Any]:
    match op:
        case "call_function":
            return function_named(target)
        case "placeholder" if is_identifier(target):
            return target
        case "output" if target == "output":
            return target
        case "call_module" if isinstance(root.get(target), torch.nn.Module):
            return target
        case "get_attr" if isinstance(root.get(target), torch.Tensor):
            return target
        case _:
            raise PlanFormatError(f"node: {op[:40]!r} of {target[:100]!r} is not allowed in a saved program")


def _read_place(item: Any, node: torch.fx.Node, traces: list[str]) -> None:
    if item.get("trace") is not None:
        index = take(item, "trace", int)
        if not 0 <= index < len(traces):
            raise PlanFormatError(f"node {node.name}: no stack trace {index}")
        node.meta["stack_trace"] = traces[index]
    path = take_text(item, "module")
    if path is not None:
        node.meta["nn_module_stack"] = {path: (path, "")}
