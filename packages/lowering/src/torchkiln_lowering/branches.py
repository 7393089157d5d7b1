"""The branches of ``torch.cond``: graphs that a call of a program runs, lowered as the program is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import torch.fx

from torchkiln_core.program import InputKind, Program, ProgramInput
from torchkiln_core.spec import DimRange

_COND = torch.ops.higher_order.cond


def calls_of_branches(graph: torch.fx.Graph) -> Iterator[tuple[torch.fx.Node, tuple[str, str]]]:
    """The calls of ``torch.cond`` with the names of their two graphs, where these can be programs."""
    for node in graph.find_nodes(op="call_function", target=_COND):
        names = tuple(str(branch.target) for branch in node.args[1:3] if isinstance(branch, torch.fx.Node) and branch.op == "get_attr")
        modules = [getattr(graph.owning_module, name, None) for name in names]
        # A name with a dot is of a module that other programs share.
        if len(names) == 2 and all(isinstance(module, torch.fx.GraphModule) and _is_program(module) for module in modules):
            yield node, (names[0], names[1])


def branch_program(module: torch.nn.Module, dims: Mapping[str, DimRange]) -> Program:
    """A branch as a program. Which of its arguments are weights is known to the program around it alone.

    Raises:
        TypeError: The module is no graph.
    """
    if not isinstance(module, torch.fx.GraphModule):
        raise TypeError(f"expected a graph, got {type(module).__name__}")
    inputs = tuple(ProgramInput(node.name, InputKind.USER) for node in module.graph.find_nodes(op="placeholder"))
    return Program(module, inputs, {}, dims)


def _is_program(module: torch.fx.GraphModule) -> bool:
    """Whether it returns a flat tuple, and the type of every value is known."""
    nodes = module.graph.nodes
    known = all("val" in node.meta for node in nodes if node.op in ("placeholder", "call_function"))
    return known and isinstance(module.graph.output_node().args[0], (tuple, list))
