"""``assert_rewrites`` and ``assert_keeps``: one lowering pass on one function, compared before and after."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from torchkiln_testing.compare import assert_same
from torchkiln_testing.tolerance import OpClass

Rewrite = Callable[..., Any]
"""A pass: ``(gm) -> bool`` as in a pipeline, or ``(gm, sample_inputs) -> gm`` as users register it."""


def assert_rewrites(
    rewrite: Rewrite,
    function: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    gone: Sequence[OpOverload[..., Any]] = (),
    made: Sequence[OpOverload[..., Any]] = (),
    op_class: OpClass = OpClass.POINTWISE,
) -> torch.fx.GraphModule:
    """Raises ``AssertionError`` unless a pass changes the graph of ``function`` and nothing that a caller can see.

    Values, dtypes, shapes and which results share memory with inputs or with each other stay; the new graph is valid; calls of
    ``gone`` no longer occur, calls of ``made`` do.

    Returns:
        The new graph, without dead code.
    """
    before = traced(function, inputs)
    after, changed = _applied(rewrite, before, inputs)
    name = getattr(rewrite, "__name__", str(rewrite))
    assert changed, f"{name}: expected a changed graph, got the same:\n{before.graph}"
    targets = {node.target for node in after.graph.nodes}
    for target in gone:
        assert target not in targets, f"{name}: expected no {target}, got\n{after.graph}"
    for target in made:
        assert target in targets, f"{name}: expected {target}, got\n{after.graph}"
    _assert_equal(name, before, after, inputs, op_class)
    return after


def assert_keeps(rewrite: Rewrite, function: Callable[..., Any], inputs: Sequence[Any]) -> None:
    """Raises ``AssertionError`` unless a pass leaves the graph of ``function`` as it is, and says so."""
    before = traced(function, inputs)
    after, changed = _applied(rewrite, before, inputs)
    name = getattr(rewrite, "__name__", str(rewrite))
    assert _text(after) == _text(before), f"{name}: expected the graph to stay\n{before.graph}\ngot\n{after.graph}"
    assert not changed, f"{name}: it says that it changed the graph, but did not"


def traced(function: Callable[..., Any], inputs: Sequence[Any]) -> torch.fx.GraphModule:
    """The flat functional ATen graph of a function of tensors, as a pipeline gets it, with fake values on every node."""
    exported = torch.export.export(_Whole(function), tuple(inputs), strict=False).run_decompositions({})
    module: torch.fx.GraphModule = exported.graph_module
    # Weights and constants as attributes: a graph of one's own for a pass to edit.
    signature = exported.graph_signature
    state = {**exported.state_dict, **exported.constants}
    targets = {**signature.inputs_to_parameters, **signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
    for node in list(module.graph.find_nodes(op="placeholder")):
        if node.name in targets:
            name = f"constant_{node.name}"
            module.register_buffer(name, state[targets[node.name]])
            with module.graph.inserting_after(node):
                attribute = module.graph.get_attr(name)
            attribute.meta = dict(node.meta)
            node.replace_all_uses_with(attribute)
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


class _Whole(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def _applied(rewrite: Rewrite, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> tuple[torch.fx.GraphModule, bool]:
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    copy = torch.fx.GraphModule(module, graph)
    result = rewrite(copy) if len(inspect.signature(rewrite).parameters) == 1 else rewrite(copy, list(inputs))
    after = result if isinstance(result, torch.fx.GraphModule) else copy
    after.graph.eliminate_dead_code()
    after.graph.lint()
    after.recompile()
    changed = bool(result) if isinstance(result, bool) else _text(after) != _text(module)
    return after, changed


def _text(module: torch.fx.GraphModule) -> list[tuple[str, str, str, str]]:
    """The graph without node names."""
    number = {node: index for index, node in enumerate(module.graph.nodes)}

    def shown(value: Any) -> str:
        return repr(pytree.tree_map(lambda leaf: f"%{number[leaf]}" if isinstance(leaf, torch.fx.Node) else leaf, value))

    return [(node.op, str(node.target), shown(list(node.args)), shown(dict(node.kwargs))) for node in module.graph.nodes]


def _assert_equal(name: str, before: torch.fx.GraphModule, after: torch.fx.GraphModule, inputs: Sequence[Any], op_class: OpClass) -> None:
    (want, want_shared), (got, got_shared) = (_run(module, inputs) for module in (before, after))
    assert_same(want, got, op_class, where=name)
    assert want_shared == got_shared, f"{name}: results that share memory: expected {want_shared}, got {got_shared}"


def _run(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], list[tuple[str, ...]]]:
    values = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
    with torch.random.fork_rng([]), torch.no_grad():
        torch.manual_seed(0)
        results = tuple(torch.fx.Interpreter(module).run(*values))
    named = [*((f"input {i}", value) for i, value in enumerate(values)), *((f"result {i}", value) for i, value in enumerate(results))]
    memory = [(label, value.untyped_storage().data_ptr()) for label, value in named if isinstance(value, torch.Tensor)]
    shared = [
        (mine, *(label for label, other in memory if other == address and label != mine))
        for mine, address in memory
        if mine.startswith("result")
    ]
    return results, shared
