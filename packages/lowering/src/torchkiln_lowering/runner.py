"""Running passes: dead code, lint, metadata, the program's signature, and errors that name the pass."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch._ops import OpOverload
from torch.fx.node import map_arg

from torchkiln_core.call import source_of
from torchkiln_core.errors import LoweringError
from torchkiln_lowering.effects import has_effects, results
from torchkiln_lowering.metadata import describe, fake_mode_of, same_kind, same_layout
from torchkiln_lowering.pipeline import Pass, Pipeline
from torchkiln_lowering.trace import without_new_guards

_PLACE = ("stack_trace", "nn_module_stack")
Check = Callable[[Pass, torch.fx.Graph, torch.fx.GraphModule], None]
"""Compares the graph before and after a pass; raises what is wrong."""


def no_check(item: Pass, before: torch.fx.Graph, after: torch.fx.GraphModule) -> None:
    """Compares nothing."""


def run_passes(module: torch.fx.GraphModule, pipeline: Pipeline, check: Check = no_check) -> tuple[torch.fx.GraphModule, bool]:
    """Runs every pass of a pipeline on a copy of ``module``.

    Returns:
        The new module and whether any pass changed it.

    Raises:
        LoweringError: "pass P failed after passes [Q, R]", with the graph as it was before P as a note.
    """
    done: list[str] = []
    changed = False
    for item in pipeline.passes:
        before = copied_graph(module.graph)
        try:
            if item.run(module):
                changed = True
                settle(module, before)
                check(item, before, module)
            _check_removed(item, module)
        except Exception as error:
            raise pass_error(item.name, done, before, error) from error
        done.append(item.name)
    return module, changed


def copied(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The module with a graph of its own; metadata, submodules and tensors are shared."""
    result = torch.fx.GraphModule(module, copied_graph(module.graph))
    result.meta = dict(module.meta)
    return result


def copied_graph(graph: torch.fx.Graph) -> torch.fx.Graph:
    """The graph with nodes of its own; metadata is shared."""
    result = torch.fx.Graph()
    result.output(result.graph_copy(graph, {}))
    result.output_node().meta = dict(graph.output_node().meta)
    return result


def pass_error(name: str, done: list[str], before: torch.fx.Graph, error: Exception) -> LoweringError:
    """An error that says which pass failed, what ran before it, and carries the graph that it got."""
    node = error.node if isinstance(error, LoweringError) else None
    where = error.where if isinstance(error, LoweringError) else None
    reason = error.message if isinstance(error, LoweringError) else f"{type(error).__name__}: {error}"
    failure = LoweringError(f"pass {name} failed after passes [{', '.join(done)}]: {reason}", node=node, where=where)
    failure.add_note(f"graph before {name}:\n{before}")
    return failure


def settle(module: torch.fx.GraphModule, before: torch.fx.Graph) -> None:
    """Brings an edited graph in order: no dead code, valid, metadata on every node, inputs and outputs as before.

    Raises:
        LoweringError: The pass changed the program's signature, or a new call has no valid metadata.
    """
    module.graph.eliminate_dead_code(has_effects)
    module.graph.lint()
    _inherit_places(module.graph)
    _check_inputs(module.graph, before)
    _infer(module, before)
    _check_outputs(module.graph, before)
    module.recompile()


def _inherit_places(graph: torch.fx.Graph) -> None:
    """Gives calls that a pass made without saying where they come from the place of what they read."""
    for node in graph.nodes:
        if node.op == "call_function":
            for key in _PLACE:
                if key not in node.meta:
                    found = next((source.meta[key] for source in node.all_input_nodes if key in source.meta), None)
                    if found is not None:
                        node.meta[key] = found


def _check_removed(item: Pass, module: torch.fx.GraphModule) -> None:
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target in item.removes:
            raise LoweringError(f"it promised to remove {node.target}, which is still there", node=node.name, where=source_of(node))


def _check_inputs(graph: torch.fx.Graph, before: torch.fx.Graph) -> None:
    new, old = ([str(node.target) for node in each.find_nodes(op="placeholder")] for each in (graph, before))
    if new != old:
        raise LoweringError(f"inputs: expected {old}, got {new}", fix="a pass must keep every placeholder, in order")


def _check_outputs(graph: torch.fx.Graph, before: torch.fx.Graph) -> None:
    if not isinstance(graph.output_node().args[0], (tuple, list)):
        raise LoweringError("output: expected a flat tuple, got a single value", fix="return every result in a tuple, as before")
    new, old = results(graph), results(before)
    if len(new) != len(old):
        raise LoweringError(f"output: expected {len(old)} results, got {len(new)}")
    for index, (mine, theirs) in enumerate(zip(new, old, strict=True)):
        left, right = (value.meta["val"] if isinstance(value, torch.fx.Node) else value for value in (mine, theirs))
        if not same_kind(left, right):
            raise LoweringError(f"output {index}: expected {describe(right)}, got {describe(left)}")


def _infer(module: torch.fx.GraphModule, before: torch.fx.Graph) -> None:
    """Computes the metadata of calls that are new or that read something other than before, by running them on fake tensors."""
    mode = fake_mode_of(before)
    known = {node.name: node for node in before.nodes}
    moved: set[torch.fx.Node] = set()
    for node in module.graph.nodes:
        if node.op == "get_attr" and "val" not in node.meta and mode is not None:
            value = operator.attrgetter(str(node.target))(module)
            if isinstance(value, torch.Tensor):
                node.meta["val"] = mode.from_tensor(value, static_shapes=True)
        if node.op != "call_function" or (node.meta.get("unbacked_bindings") and "val" in node.meta):
            continue
        if not _is_new(node, known.get(node.name)) and not any(source in moved for source in node.all_input_nodes):
            continue
        if isinstance(node.target, torch._ops.HigherOrderOperator) and "val" in node.meta:
            continue
        value = _fake_result(node, mode)
        if "val" not in node.meta or not same_layout(value, node.meta["val"]):
            node.meta["val"] = value
            moved.add(node)


def _is_new(node: torch.fx.Node, old: torch.fx.Node | None) -> bool:
    if old is None or "val" not in node.meta or old.target is not node.target:
        return True
    (mine, inputs), (theirs, old_inputs) = _signature(node), _signature(old)
    if mine != theirs or len(inputs) != len(old_inputs):
        return True
    pairs = zip(inputs, old_inputs, strict=True)
    return not all("val" in new.meta and same_layout(new.meta["val"], was.meta.get("val")) for new, was in pairs)


def _signature(node: torch.fx.Node) -> tuple[str, list[torch.fx.Node]]:
    """The text of a call with its inputs left out, and those inputs in order."""
    inputs: list[torch.fx.Node] = []

    def place(source: torch.fx.Node) -> str:
        inputs.append(source)
        return "<node>"

    return repr(map_arg((node.args, dict(sorted(node.kwargs.items()))), place)), inputs


def _fake_result(node: torch.fx.Node, mode: Any) -> Any:
    try:
        args, kwargs = map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
        if mode is None:
            return node.target(*args, **kwargs)  # type: ignore[operator]
        with without_new_guards(mode):
            return node.target(*args, **kwargs)  # type: ignore[operator]
    except Exception as error:
        name = node.target if isinstance(node.target, OpOverload) else getattr(node.target, "__name__", node.target)
        raise LoweringError(f"{name}: its arguments are not valid: {error}", node=node.name, where=source_of(node)) from error
