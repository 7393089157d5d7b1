"""Constant folding: what follows from no input and no weight is computed once, while the program is lowered."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx
from torch._ops import OpOverload
from torch.fx.node import map_arg

from torchkiln_lowering.effects import has_effects, has_tensor, is_free, is_random, is_shareable, sharers
from torchkiln_lowering.metadata import same_kind

MAX_FOLDED_BYTES = 1 << 20
"""A larger result costs more memory than computing it costs time."""


def fold_constants(module: torch.fx.GraphModule) -> bool:
    """Replaces calls that depend on static numbers alone (``eye``, ``linspace``, masks, tables) by tensors of the module.

    Views and calls that only fill memory stay as they are: they cost nothing. ``why_not_folded`` names what else stays.
    """
    graph = module.graph
    escaping = sharers(graph)
    values: dict[torch.fx.Node, Any] = {}
    for node in graph.nodes:
        if node not in escaping and why_not_folded(node, values) is None:
            value = _computed(node, values)
            if value is not None:
                values[node] = value
    folded = _worth_keeping(graph, values)
    for node in folded:
        name = _free_name(module, node.name)
        module.register_buffer(name, values[node])
        with graph.inserting_before(node):
            constant = graph.get_attr(name)
        constant.meta = {key: item for key, item in node.meta.items() if key != "unbacked_bindings"}
        node.replace_all_uses_with(constant)
        graph.erase_node(node)
    return bool(folded)


def why_not_folded(node: torch.fx.Node, constants: Any = frozenset()) -> str | None:
    """The rule that keeps a call from being folded, or ``None``.

    ``random``, ``effects``, ``dequantize`` (quantized weights are small, what they stand for is not), ``foreign`` (an operator whose
    meaning is not known), ``data`` (an argument is no constant), ``symbolic``, ``no-tensor``, ``device`` (not on this machine), ``size``.
    """
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return "no-tensor"
    value = node.meta.get("val")
    rules = {
        "random": is_random(node),
        "dequantize": "quantize" in str(node.target),
        "effects": has_effects(node),
        "foreign": not is_shareable(node),
        "data": not all(source in constants for source in node.all_input_nodes),
        "no-tensor": not isinstance(value, torch.Tensor),
        "symbolic": not _is_static(value),
        "device": not _is_here(value),
        "size": not _is_small(value),
    }
    return next((rule for rule, holds in rules.items() if holds), None)


def constant_value(module: torch.fx.GraphModule, node: torch.fx.Node) -> torch.Tensor | None:
    """The contents of a tensor that passes put into the module, of a view of one or of a fill; ``None`` for anything else."""
    chain = [node]
    while is_shareable(chain[-1]) and is_free(chain[-1]) and len(chain[-1].all_input_nodes) == 1:
        chain.append(chain[-1].all_input_nodes[0])
    values: dict[torch.fx.Node, Any] = {}
    if chain[-1].op == "get_attr":
        held = operator.attrgetter(str(chain[-1].target))(module)
        if not isinstance(held, torch.Tensor) or not _is_here(held):
            return None
        values[chain.pop()] = held
    for item in reversed(chain):
        value = None if why_not_folded(item, values) else _computed(item, values)
        if value is None:
            return None
        values[item] = value
    found: torch.Tensor = values[node]
    return found


def _is_static(value: Any) -> bool:
    return has_static_shape(value) and value.layout == torch.strided


def has_static_shape(value: Any) -> bool:
    """Whether every size of a tensor is a number."""
    return isinstance(value, torch.Tensor) and all(isinstance(size, int) for size in value.shape)


def _is_here(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.device.type == "cpu" or (value.device.type == "cuda" and torch.cuda.is_available()))


def _is_small(value: Any) -> bool:
    return has_static_shape(value) and value.numel() * value.element_size() <= MAX_FOLDED_BYTES


def _computed(node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> torch.Tensor | None:
    args, kwargs = map_arg((node.args, node.kwargs), lambda source: values[source])
    with torch.no_grad():
        value = node.target(*args, **kwargs)  # type: ignore[operator]
    return value if same_kind(value, node.meta["val"]) else None


def _worth_keeping(graph: torch.fx.Graph, values: dict[torch.fx.Node, Any]) -> list[torch.fx.Node]:
    """The constants that something outside them reads, and that cost anything to compute."""
    read: set[torch.fx.Node] = set()
    chosen: list[torch.fx.Node] = []
    for node in reversed(graph.nodes):
        if node in values and any(user not in values or (user in read and is_free(user)) for user in node.users):
            read.add(node)
            if not is_free(node) and has_tensor(node):
                chosen.append(node)
    return chosen[::-1]


def _free_name(module: torch.fx.GraphModule, stem: str) -> str:
    name, number = f"_folded_{stem}", 0
    while hasattr(module, name):
        number += 1
        name = f"_folded_{stem}_{number}"
    return name
