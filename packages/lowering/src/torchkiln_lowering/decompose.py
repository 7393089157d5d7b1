"""Decomposition of the calls that the oracle refuses, in place, keeping only what leads to calls that it accepts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx
from torch._ops import OpOverload

from torchkiln_core.call import OpCall
from torchkiln_core.rejection import SupportOracle, target_name
from torchkiln_lowering.decompositions.table import Decompositions, used_outputs
from torchkiln_lowering.effects import ELEMENTARY, has_effects, has_tensor, is_free, is_view, may_alias
from torchkiln_lowering.layout import NoLayout, match_layout
from torchkiln_lowering.limits import LoweredOracle
from torchkiln_lowering.metadata import KEPT, TRACED, describe, fake_mode_of, same_kind
from torchkiln_lowering.trace import CallTracer, without_new_guards

_log = logging.getLogger("torchkiln.lowering")
aten = torch.ops.aten

MAX_CALLS = 2000
"""A decomposition of more calls is not taken: PyTorch's own unroll recurrent networks over time."""
_OWN_META = frozenset({"val", "tensor_meta", "unbacked_bindings", "eager_input_vals", "original_aten", TRACED, KEPT})


def every_call(node: torch.fx.Node) -> bool:
    """The condition that holds for every call."""
    return True


def decompose(
    graph: torch.fx.Graph, oracle: SupportOracle, table: Decompositions, wanted: Callable[[torch.fx.Node], bool] = every_call
) -> bool:
    """Rewrites ``graph``: a refused call becomes the calls of its decomposition, as deep as needed, if any of them is accepted.

    Args:
        graph: Edited in place.
        oracle: Says which calls are accepted.
        table: The decompositions.
        wanted: The calls to look at.

    Returns:
        Whether the graph changed.
    """
    mode = fake_mode_of(graph)
    if mode is None:
        return False
    expander = _Expander(graph, oracle, table, CallTracer(mode))
    changed = False
    # A list, since expansion edits the graph; calls that an expansion adds were offered to the oracle during it.
    for node in [node for node in graph.nodes if node.op == "call_function" and wanted(node)]:
        changed = expander.expand(node, ()) or changed
    return changed


class _Expander:
    def __init__(self, graph: torch.fx.Graph, oracle: SupportOracle, table: Decompositions, tracer: CallTracer) -> None:
        self._graph = graph
        self._oracle = oracle
        self._table = table
        self._tracer = tracer
        self._verdicts: dict[torch.fx.Node, bool] = {}

    def expand(self, node: torch.fx.Node, ancestors: tuple[Any, ...]) -> bool:
        """Replaces a refused call by its decomposition.

        ``ancestors`` are the operators being expanded, with their dtypes: none is entered twice.
        """
        node.meta.pop(KEPT, None)
        if not _is_candidate(node) or _identity(node) in ancestors:
            return False
        call = OpCall.from_node(node)
        self._verdicts[node] = self._oracle.reject(call) is not None
        if not self._verdicts[node]:
            return False
        reasons: list[str] = []
        for rule in self._table.candidates(call):
            reason = self._try(node, self._tracer.trace(rule, node), ancestors)
            if reason is None:
                return True
            if reason:
                _log.info("%s (%s) keeps its form: its decomposition %s", node.target, node.name, reason)
                reasons.append(reason)
        if reasons:
            node.meta[KEPT] = reasons[0]
        return False

    def _try(self, node: torch.fx.Node, traced: torch.fx.GraphModule | None, ancestors: tuple[Any, ...]) -> str | None:
        """Puts a decomposition in the place of a call, or says why it does not stand for it: nothing where there is nothing to learn."""
        used = used_outputs(node) if isinstance(node.meta["val"], (tuple, list)) else frozenset({0})
        if traced is None or used is None:
            return "cannot be traced" if traced is None else "makes results one by one, and somebody reads their tuple"
        if len(traced.graph.nodes) > MAX_CALLS:
            return f"has {len(traced.graph.nodes)} calls"
        before = node.prev
        held = self._inline(node, traced.graph, used)
        for inner in list(_between(before, held)):
            self.expand(inner, (*ancestors, _identity(node)))
        values = dict(zip(sorted(used), held.args, strict=True))
        # While somebody reads the new results.
        reason = self._debris(before, node, (*ancestors, _identity(node)))
        self._graph.erase_node(held)
        if reason is None:
            reason = self._misfit(node, values)
        if reason is None:
            self._commit(node, values)
            return None
        for inner in reversed(list(_between(before, node))):
            self._graph.erase_node(inner)
        return reason

    def _inline(self, node: torch.fx.Node, traced: torch.fx.Graph, used: frozenset[int]) -> torch.fx.Node:
        """Copies the calls that the used results need in front of ``node``; returns a node that holds the new results."""
        mapping: dict[torch.fx.Node, torch.fx.Node] = dict(zip(traced.find_nodes(op="placeholder"), node.all_input_nodes, strict=True))
        returned = traced.output_node().args[0]
        outputs = returned if isinstance(returned, (tuple, list)) else (returned,)
        wanted = [outputs[index] if index < len(outputs) else None for index in sorted(used)]
        needed = _needed([value for value in wanted if isinstance(value, torch.fx.Node)])
        inherited = {key: value for key, value in node.meta.items() if key not in _OWN_META}
        with self._graph.inserting_before(node):
            for inner in traced.nodes:
                if inner.op == "call_function" and inner in needed:
                    copy = self._graph.node_copy(inner, lambda source: mapping[source])
                    copy.meta = {**inherited, **{key: inner.meta[key] for key in ("val", "original_aten") if key in inner.meta}}
                    copy.meta[TRACED] = copy.meta.get("val")
                    mapping[inner] = copy
            return self._graph.call_function(_held, tuple(mapping.get(value) for value in wanted))  # type: ignore[arg-type]

    def _debris(self, before: torch.fx.Node, node: torch.fx.Node, ancestors: tuple[Any, ...]) -> str | None:
        """What is refused, unless more of the calls that compute are accepted: one call in PyTorch is better than its debris there.

        Where nothing computes (only views and sizes), all must be accepted.
        """
        calls = [inner for inner in _between(before, node) if isinstance(inner.target, OpOverload) and has_tensor(inner)]
        # Index arithmetic that moves floating-point elements is no gain.
        computing = [inner for inner in calls if not is_free(inner) and _is_floating(inner) >= _is_floating(node)]
        refused = list(filter(self._is_refused, computing or calls))
        if len(computing) > 2 * len(refused) if computing else not refused:
            return None
        first = refused[0]
        if _identity(first) in ancestors:
            return ""
        if getattr(first.target, "namespace", None) == "prims":
            # Users do not write these: what they become says more.
            return str(first.meta.get(KEPT, ""))
        found = LoweredOracle(self._oracle, self._table).reject(OpCall.from_node(first))
        return f"calls {target_name(first.target)}" + (f" ({found.message})" if found is not None else "")

    def _is_refused(self, inner: torch.fx.Node) -> bool:
        if inner not in self._verdicts:
            self._verdicts[inner] = self._oracle.reject(OpCall.from_node(inner)) is not None
        return self._verdicts[inner]

    def _misfit(self, node: torch.fx.Node, values: dict[int, Any]) -> str | None:
        """Makes each new value equal the old one in dtype, shape, strides and freshness, or says why it cannot."""
        olds = node.meta["val"] if isinstance(node.meta["val"], (tuple, list)) else (node.meta["val"],)
        for index, value in values.items():
            new = value.meta["val"] if isinstance(value, torch.fx.Node) else value
            if not same_kind(new, olds[index]):
                return f"gives {describe(new)}, not {describe(olds[index])}"
            try:
                values[index] = match_layout(self._graph, node, value, olds[index])
            except NoLayout as reason:
                if _layout_matters(node):
                    return f"is laid out otherwise: {reason}"
                values[index] = self._packed(node, value)
        return self._refresh(node, values)

    def _refresh(self, node: torch.fx.Node, values: dict[int, Any]) -> str | None:
        """Copies results that are views of an argument where the operator promises a new tensor, or says why that cannot be."""
        if is_view(node) or (isinstance(node.target, OpOverload) and node.target._can_decompose()):
            return None
        for index, value in values.items():
            if isinstance(value, torch.fx.Node) and has_tensor(value) and _views_any(value, frozenset(node.all_input_nodes)):
                try:
                    with without_new_guards(value.meta["val"].fake_mode):
                        fake = value.meta["val"].clone()
                except RuntimeError as error:
                    return f"gives a view as result {index}, of which a copy would guard on a size: {error}"
                with self._graph.inserting_before(node):
                    copy = self._graph.call_function(aten.clone.default, (value,))
                copy.meta = {**node.meta, "val": fake}
                values[index] = copy
        return None

    def _packed(self, node: torch.fx.Node, value: torch.fx.Node) -> torch.fx.Node:
        """A contiguous copy, of which every view is legal that was legal for a tensor of any other strides."""
        with self._graph.inserting_before(node):
            copy = self._graph.call_function(aten.clone.default, (value,), {"memory_format": torch.contiguous_format})
        with without_new_guards(value.meta["val"].fake_mode):
            copy.meta = {**node.meta, "val": value.meta["val"].clone(memory_format=torch.contiguous_format)}
        for user in node.users:
            # They were traced with other strides.
            user.meta.pop(TRACED, None)
        return copy

    def _commit(self, node: torch.fx.Node, values: dict[int, Any]) -> None:
        if not isinstance(node.meta["val"], (tuple, list)):
            self._substitute(node, values[0])
            return
        for pick in list(node.users):
            self._substitute(pick, values.get(int(pick.args[1])))  # type: ignore[arg-type]
        self._graph.erase_node(node)

    def _substitute(self, old: torch.fx.Node, new: torch.fx.Node | None) -> None:
        if new is not None:
            old.replace_all_uses_with(new)
        self._graph.erase_node(old)


def _held(*results: Any) -> None:
    """Target of the node that reads the results of an expansion while the calls in it are expanded."""


def _is_candidate(node: torch.fx.Node) -> bool:
    return (
        node.op == "call_function"
        and isinstance(node.target, OpOverload)
        and node.target not in ELEMENTARY
        and has_tensor(node)
        and not _is_complex(node)
        and not has_effects(node)
        and not node.meta.get("unbacked_bindings")
    )


def _identity(node: torch.fx.Node) -> tuple[Any, ...]:
    value = node.meta["val"]
    return node.target, *(getattr(item, "dtype", None) for item in (value if isinstance(value, (tuple, list)) else (value,)))


def _layout_matters(node: torch.fx.Node) -> bool:
    """Whether somebody can tell the strides of a result: it is returned, itself or a view of it, or read by its strides."""
    stack = [node]
    while stack:
        for user in stack.pop().users:
            if user.op == "output" or user.target is aten.as_strided.default or not isinstance(user.target, OpOverload):
                return True
            if is_view(user) or may_alias(user):
                stack.append(user)
    return False


def _is_complex(node: torch.fx.Node) -> bool:
    """Complex results are no engine's: such calls stay whole for the pass that splits them into real ones."""
    value = node.meta["val"]
    return isinstance(value, torch.Tensor) and value.is_complex()


def _is_floating(node: torch.fx.Node) -> bool:
    value = node.meta["val"]
    tensors = value if isinstance(value, (tuple, list)) else (value,)
    return any(isinstance(item, torch.Tensor) and item.dtype.is_floating_point for item in tensors)


def _between(before: torch.fx.Node, after: torch.fx.Node) -> Iterator[torch.fx.Node]:
    node = before.next
    while node is not after:
        yield node
        node = node.next


def _views_any(value: torch.fx.Node, arguments: frozenset[torch.fx.Node]) -> bool:
    stack = [value]
    while stack:
        node = stack.pop()
        if node in arguments:
            return True
        stack.extend(may_alias(node))
    return False


def _needed(results: list[torch.fx.Node]) -> set[torch.fx.Node]:
    seen: set[torch.fx.Node] = set()
    stack = list(results)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(node.all_input_nodes)
    return seen
