"""FX graphs as JSON data. What a file cannot hold is refused here, with the node and the user's source line."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from torch.fx.graph import CodeGen

from torchkiln_core import PlanError, module_path, source_of
from torchkiln_core.rejection import target_name
from torchkiln_runtime.kiln_file.arguments import encode_argument
from torchkiln_runtime.kiln_file.names import is_identifier, is_qualified_name
from torchkiln_runtime.kiln_file.targets import function_name
from torchkiln_runtime.kiln_file.tensor_table import TensorTable


@dataclass(slots=True)
class GraphWriter:
    """Writes one graph.

    Attributes:
        title: How errors and tensor names call the graph, such as ``torch_1``.
        tensors: Takes the tensors that ``get_attr`` nodes read.
        segments: Names that ``call_module`` may call.
    """

    title: str
    tensors: TensorTable
    segments: AbstractSet[str] = frozenset()
    _attributes: dict[str, Any] = field(default_factory=dict)
    _traces: dict[str, int] = field(default_factory=dict)

    def write(self, module: torch.fx.GraphModule) -> dict[str, Any]:
        """The record of a graph: its nodes in order, the tensors that it reads, and stack traces, each once.

        Raises:
            PlanError: A node, its target or one of its arguments is of a kind that files do not hold.
        """
        if type(module.graph._codegen) is not CodeGen:
            raise PlanError(f"graph {self.title}: expected flat inputs and outputs, got a graph with a calling convention of its own")
        nodes = [self._node(node, module) for node in module.graph.nodes]
        return {"nodes": nodes, "attributes": self._attributes, "traces": list(self._traces)}

    def _node(self, node: torch.fx.Node, module: torch.fx.GraphModule) -> dict[str, Any]:
        if not is_identifier(node.name) or not all(map(is_identifier, node.kwargs)):
            raise self._refusal(node, "expected its name and keywords to be identifiers")
        try:
            args = [encode_argument(arg) for arg in node.args]
            kwargs = {name: encode_argument(arg) for name, arg in node.kwargs.items()}
        except (TypeError, RecursionError) as error:
            raise self._refusal(node, f"a saved program does not hold {error}") from error
        trace = node.meta.get("stack_trace")
        return {
            "op": node.op,
            "name": node.name,
            "target": self._target(node, module),
            "args": args,
            "kwargs": kwargs,
            "trace": None if not trace else self._traces.setdefault(str(trace), len(self._traces)),
            "module": module_path(node),
        }

    def _target(self, node: torch.fx.Node, module: torch.fx.GraphModule) -> str:
        target = node.target
        match node.op:
            case "placeholder" if is_identifier(str(target)):
                return str(target)
            case "output":
                return "output"
            case "call_module" if target in self.segments:
                return str(target)
            case "get_attr" if is_qualified_name(str(target)):
                self._attribute(node, str(target), module)
                return str(target)
            case "call_function":
                name = function_name(target) if callable(target) else None
                if name is not None:
                    return name
        shown = target_name(target) if callable(target) else repr(target)
        raise self._refusal(
            node,
            f"a saved program does not hold {node.op} of {shown}",
            "call registered operators (torch.library.custom_op makes one of any function), or what kiln_file.targets.FUNCTIONS lists",
        )

    def _attribute(self, node: torch.fx.Node, target: str, module: torch.fx.GraphModule) -> None:
        if target in self._attributes:
            return
        owner, _, name = target.rpartition(".")
        try:
            tensor = getattr(module.get_submodule(owner), name)
        except AttributeError as error:
            raise self._refusal(node, f"the graph has no attribute {target!r}") from error
        if not isinstance(tensor, torch.Tensor):
            raise self._refusal(node, f"expected attribute {target!r} to be a tensor, got {type(tensor).__name__}")
        self._attributes[target] = self.tensors.add(f"{self.title}/{target}", tensor)

    def _refusal(self, node: torch.fx.Node, reason: str, fix: str | None = None) -> PlanError:
        where = source_of(node)
        place = f"\n  where: {where}" if where else ""
        return PlanError(f"graph {self.title}, node {node.name}: {reason}{place}", fix=fix)
