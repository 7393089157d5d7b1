"""float64 as float32, for users who ask for it: TensorRT has no float64."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch.fx.node import map_aggregate

from torchkiln_core.call import source_of
from torchkiln_core.errors import LoweringError
from torchkiln_lowering.effects import results

aten = torch.ops.aten


def truncate_double(module: torch.fx.GraphModule) -> bool:
    """Computes in float32 what the program computes in float64; results keep their dtype.

    Raises:
        LoweringError: The program computes with complex128 numbers.
    """
    graph = module.graph
    doubles = [value for value in results(graph) if isinstance(value, torch.fx.Node) and value.op != "placeholder" and _is_double(value)]
    changed = False
    for node in list(graph.nodes):
        _refuse_complex(node)
        if node.op in ("placeholder", "get_attr") and _is_double(node):
            changed = _narrow(graph, node) or changed
        elif node.op == "call_function" and _mentions_double((node.args, node.kwargs)):
            node.args, node.kwargs = map_aggregate((node.args, node.kwargs), _narrowed)
            changed = True
    output = graph.output_node()
    for value in dict.fromkeys(doubles):
        with graph.inserting_before(output):
            wide = graph.call_function(aten._to_copy.default, (value,), {"dtype": torch.float64})
        output.replace_input_with(value, wide)
    return changed or bool(doubles)


def _narrow(graph: torch.fx.Graph, node: torch.fx.Node) -> bool:
    users = [user for user in node.users if user.op != "output"]
    if not users:
        return False
    # Placeholders come first, so the cast goes before the first call.
    with graph.inserting_before(next(item for item in graph.nodes if item.op not in ("placeholder", "get_attr"))):
        narrow = graph.call_function(aten._to_copy.default, (node,), {"dtype": torch.float32})
    for user in users:
        user.replace_input_with(node, narrow)
    return True


def _is_double(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype == torch.float64


def _mentions_double(arguments: Any) -> bool:
    found: list[bool] = []
    map_aggregate(arguments, lambda leaf: found.append(leaf is torch.float64))
    return any(found)


def _narrowed(leaf: Any) -> Any:
    return torch.float32 if leaf is torch.float64 else leaf


def _refuse_complex(node: torch.fx.Node) -> None:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor) and value.dtype == torch.complex128:
        raise LoweringError(
            "truncate_double: expected real numbers, got complex128",
            node=node.name,
            where=source_of(node),
            fix="compile without truncate_double",
        )
