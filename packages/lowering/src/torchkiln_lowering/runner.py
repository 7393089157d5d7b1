"""Running passes: dead code, lint, metadata, the program's signature, and errors that name the pass."""

from __future__ import annotations

import contextlib
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
from torchkiln_lowering.metadata import TRACED, describe, fake_mode_of, same_kind, same_layout
from torchkiln_lowering.pipeline import Pass, Pipeline
from torchkiln_lowering.snapshot import Snapshot
from torchkiln_lowering.trace import signature_of, without_new_guards

_PLACE = ("stack_trace", "nn_module_stack")
_CALLS_ONLY = "write what it computes as call_function nodes of functional ATen operators"
_SAME_RESULTS = "a pass must keep every result's dtype, device and shape, in order"
Check = Callable[[Pass, torch.fx.Graph, torch.fx.GraphModule], None]
"""Compares the graph before and after a pass; raises what is wrong."""


def no_check(item: Pass, before: torch.fx.Graph, after: torch.fx.GraphModule) -> None:
    """Compares nothing."""


def run_passes(module: torch.fx.GraphModule, pipeline: Pipeline, check: Check = no_check) -> tuple[torch.fx.GraphModule, bool]:
    """Runs every pass of a pipeline on ``module``, whose code is not generated anew.

    Returns:
        The module and whether any pass changed it.

    Raises:
        LoweringError: "pass P failed after passes [Q, R]", with the graph as it was before P as a note.
    """
    done: list[str] = []
    changed = False
    before: Snapshot | None = None
    known: dict[Any, Any] = {}
    for item in pipeline.passes:
        before = before or Snapshot(module.graph)
        old = module.graph if check is no_check else copied_graph(module.graph)
        try:
            edited = _run(item, module, before)
            if edited:
                changed = True
                settle(module, before, known)
                check(item, old, module)
            _check_removed(item, module)
        except Exception as error:
            raise pass_error(item.name, done, before, error) from error
        done.append(item.name)
        before = None if edited else before
    return module, changed


def _run(item: Pass, module: torch.fx.GraphModule, before: Snapshot) -> bool:
    """Whether a pass changed the graph: as it says, or as is seen where it says that it did not."""
    said = item.run(module)
    if not isinstance(said, bool):
        raise TypeError(
            f"expected the pass to return whether it changed the graph, True or False, got {type(said).__name__}; "
            "make one that returns a graph by Pass.from_function"
        )
    return said or before.differs(module.graph)


def copied(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The module with a graph of its own, whose code is not generated yet; metadata, submodules and tensors are shared."""
    graph, attributes = copied_graph(module.graph), torch.fx.Graph()
    for node in graph.nodes:
        if node.op in ("get_attr", "call_module"):
            attributes.create_node(node.op, node.target)
    attributes.output(None)
    result = torch.fx.GraphModule(module, attributes)
    # Not by the property, which generates code: half of the time of a copy, for a graph that is edited at once.
    result._graph, graph.owning_module = graph, result
    result.meta = dict(module.meta)
    return result


def copied_graph(graph: torch.fx.Graph) -> torch.fx.Graph:
    """The graph with nodes of its own; metadata is shared."""
    result = torch.fx.Graph()
    result.output(result.graph_copy(graph, {}))
    result.output_node().meta = dict(graph.output_node().meta)
    return result


def pass_error(name: str, done: list[str], before: Snapshot, error: Exception) -> LoweringError:
    """An error that says which pass failed, what ran before it, and carries the graph that it got."""
    own = error if isinstance(error, LoweringError) else LoweringError(f"{type(error).__name__}: {error}")
    message = f"pass {name} failed after passes [{', '.join(done)}]: {own.message}"
    failure = LoweringError(message, node=own.node, where=own.where, fix=own.fix)
    failure.add_note(f"graph before {name}:\n{before}")
    return failure


def settle(module: torch.fx.GraphModule, before: Snapshot, known: dict[Any, Any]) -> None:
    """Brings an edited graph in order: no dead code, valid, metadata on every node, inputs and outputs as before.

    ``known`` keeps the metadata of calls by what they compute, since graphs repeat their layers.

    Raises:
        LoweringError: The pass changed the program's signature, or a new call has no valid metadata.
    """
    # This lints the graph first.
    module.graph.eliminate_dead_code(has_effects)
    _check_nodes(module.graph, before)
    _inherit_places(module.graph, before)
    _check_inputs(module.graph, before)
    _infer(module, before, known)
    _check_outputs(module.graph, before)


def _inherit_places(graph: torch.fx.Graph, before: Snapshot) -> None:
    """Gives calls that a pass made without saying where they come from the place of what they read."""
    for node in graph.nodes:
        if node.op == "call_function" and node.name not in before:
            for key in _PLACE:
                if key not in node.meta:
                    found = next((source.meta[key] for source in node.all_input_nodes if key in source.meta), None)
                    if found is not None:
                        node.meta[key] = found


def _check_removed(item: Pass, module: torch.fx.GraphModule) -> None:
    for node in module.graph.nodes if item.removes else ():
        if node.op == "call_function" and node.target in item.removes:
            raise LoweringError(f"it promised to remove {node.target}, which is still there", node=node.name, where=source_of(node))


def _check_nodes(graph: torch.fx.Graph, before: Snapshot) -> None:
    outputs = len(graph.find_nodes(op="output"))
    if outputs != 1:
        raise LoweringError(f"output: expected one output node, got {outputs}")
    for node in graph.nodes:
        if node.op in ("call_module", "call_method"):
            raise LoweringError(
                f"expected calls of operators only, got a {node.op} node", node=node.name, where=source_of(node), fix=_CALLS_ONLY
            )
        if isinstance(node.target, OpOverload) and node.target._schema.is_mutable and not before.calls(node):
            raise LoweringError(
                f"{node.target}: expected a call that writes to no argument", node=node.name, where=source_of(node), fix=_CALLS_ONLY
            )


def _check_inputs(graph: torch.fx.Graph, before: Snapshot) -> None:
    new = [str(node.target) for node in graph.find_nodes(op="placeholder")]
    if new != before.inputs:
        raise LoweringError(f"inputs: expected {before.inputs}, got {new}", fix="a pass must keep every placeholder, in order")


def _check_outputs(graph: torch.fx.Graph, before: Snapshot) -> None:
    if not isinstance(graph.output_node().args[0], (tuple, list)):
        raise LoweringError("output: expected a flat tuple, got a single value", fix="return every result in a tuple, as before")
    new = results(graph)
    if len(new) != len(before.results):
        raise LoweringError(f"output: expected {len(before.results)} results, got {len(new)}", fix=_SAME_RESULTS)
    for index, (mine, theirs) in enumerate(zip(new, before.results, strict=True)):
        value = mine.meta["val"] if isinstance(mine, torch.fx.Node) else mine
        if not same_kind(value, theirs):
            raise LoweringError(f"output {index}: expected {describe(theirs)}, got {describe(value)}", fix=_SAME_RESULTS)


def _infer(module: torch.fx.GraphModule, before: Snapshot, known: dict[Any, Any]) -> None:
    """Computes the metadata of calls that are new or that read something other than before, by running them on fake tensors."""
    mode = fake_mode_of(module.graph)
    is_changed = before.changes(module.graph)
    moved: set[torch.fx.Node] = set()
    with contextlib.nullcontext() if mode is None else without_new_guards(mode):
        for node in module.graph.nodes:
            if node.op == "get_attr" and "val" not in node.meta and mode is not None:
                value = operator.attrgetter(str(node.target))(module)
                if isinstance(value, torch.Tensor):
                    node.meta["val"] = mode.from_tensor(value, static_shapes=True)
            if not _is_inferred(node):
                continue
            if (not moved or moved.isdisjoint(node.all_input_nodes)) and (_is_traced(node, before) or not is_changed(node)):
                continue
            value = _known_result(node, known)
            if "val" not in node.meta or not same_layout(value, node.meta["val"]):
                node.meta["val"] = value
                moved.add(node)


def _is_inferred(node: torch.fx.Node) -> bool:
    """Whether running a call tells its metadata: it makes no size that depends on data, and is no graph of its own."""
    if node.op != "call_function" or "val" not in node.meta:
        return node.op == "call_function"
    return not node.meta.get("unbacked_bindings") and not isinstance(node.target, torch._ops.HigherOrderOperator)


def _known_result(node: torch.fx.Node, known: dict[Any, Any]) -> Any:
    if not isinstance(node.target, OpOverload) or not all("val" in item.meta for item in node.all_input_nodes):
        return _fake_result(node)
    key = signature_of(node)
    if key not in known:
        known[key] = _fake_result(node)
    return known[key]


def _is_traced(node: torch.fx.Node, before: Snapshot) -> bool:
    return TRACED in node.meta and node.meta[TRACED] is node.meta.get("val") and node.name not in before


def _fake_result(node: torch.fx.Node) -> Any:
    blank = [source for source in node.all_input_nodes if "val" not in source.meta]
    if blank:
        raise LoweringError(
            f"{blank[0].op} {blank[0].target}: expected meta['val'], found none", node=blank[0].name, where=source_of(blank[0])
        )
    try:
        args, kwargs = map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
        return node.target(*args, **kwargs)  # type: ignore[operator]
    except Exception as error:
        name = node.target if isinstance(node.target, OpOverload) else getattr(node.target, "__name__", node.target)
        raise LoweringError(f"{name}: its arguments are not valid: {error}", node=node.name, where=source_of(node)) from error
