"""What an operator does besides computing its results: effects, random numbers, aliases of its arguments."""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch
import torch.fx
import torch.onnx.ops  # registers ROTARY
from torch._ops import OpOverload

from torchkiln_core.call import TRAINED_STATISTICS, OpCall, draws, writes_statistics

aten = torch.ops.aten
ROTARY = torch.ops.onnx.RotaryEmbedding.opset23
"""Rotary embedding as PyTorch ships it for ONNX: the one operator outside ATen that passes write."""

CONSTANT_MAKERS = frozenset(
    {
        aten.full.default,
        aten.zeros.default,
        aten.ones.default,
        aten.scalar_tensor.default,
        aten.arange.default,
        aten.arange.start,
        aten.arange.start_step,
        aten.empty.memory_format,
        aten.new_empty.default,
        aten.new_full.default,
        aten.new_zeros.default,
        aten.new_ones.default,
        aten.full_like.default,
        aten.zeros_like.default,
        aten.ones_like.default,
        aten.empty_like.default,
    }
)
"""Operators whose result depends on no tensor's contents."""

ELEMENTARY = frozenset({aten.alias.default, aten.detach.default, aten.clone.default, aten._to_copy.default, aten.lift_fresh_copy.default})
"""Operators that move or cast and have no simpler form; passes remove them where they change nothing."""

_UNANNOTATED_ALIASES = frozenset({aten._unsafe_view.default, aten._reshape_alias.default, aten.lift.default})


def is_random(node: torch.fx.Node) -> bool:
    """Whether a call draws from a generator; such calls are never decomposed, merged or dropped.

    Attention, dropout and recurrent networks are tagged as random, but draw nothing in inference or with probability 0.
    """
    target = node.target
    if not isinstance(target, OpOverload) or torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    return "val" not in node.meta or draws(OpCall.from_node(node))


@functools.lru_cache(maxsize=4096)
def _is_pure(target: OpOverload) -> bool:
    """Whether an operator never has effects, whatever its arguments; computed once per operator, since graphs repeat them."""
    seeded = torch.Tag.nondeterministic_seeded in target.tags
    graph = torch.fx.Graph()
    probe = graph.create_node("call_function", target, ())
    return not seeded and not target._schema.is_mutable and bool(target._schema.returns) and not probe.is_impure(impure_random=False)


def _is_known(target: OpOverload) -> bool:
    """Whether an operator's schema says all that it does; of foreign operators nothing is known."""
    return target.namespace in ("aten", "prims") or target is ROTARY


@functools.lru_cache(maxsize=4096)
def _hides_aliases(target: OpOverload) -> bool:
    """Whether results may be arguments although the schema does not say so, or says so."""
    annotated = any(item.alias_info is not None for item in target._schema.returns)
    composite = target._can_decompose() and target not in CONSTANT_MAKERS
    return annotated or composite or target in _UNANNOTATED_ALIASES or not _is_known(target)


def has_effects(node: torch.fx.Node) -> bool:
    """Whether a node must stay although nobody reads it: checks, mutations, random numbers, higher-order operators, output, inputs."""
    if node.op != "call_function":
        return node.op != "get_attr"
    target = node.target
    if isinstance(target, OpOverload):
        if target in TRAINED_STATISTICS and ("val" not in node.meta or writes_statistics(OpCall.from_node(node))):
            return True
        if _is_pure(target):
            return False
        return target._schema.is_mutable or is_random(node) or not target._schema.returns or node.is_impure(impure_random=False)
    return node.is_impure() or isinstance(target, torch._ops.HigherOrderOperator)


def is_shareable(node: torch.fx.Node) -> bool:
    """Whether two equal calls may become one: deterministic, without effects, and known to be so (custom operators are not)."""
    if node.op != "call_function" or has_effects(node):
        return False
    target = node.target
    if isinstance(target, OpOverload):
        return _is_known(target) and torch.Tag.nondeterministic_bitwise not in target.tags
    return target is operator.getitem or getattr(target, "__module__", "") in ("_operator", "math", "torch")


def is_view(node: torch.fx.Node) -> bool:
    """Whether every result of a call is a view of an argument by the operator's schema."""
    target = node.target
    if not isinstance(target, OpOverload):
        return False
    returns = target._schema.returns
    return bool(returns) and all(item.alias_info is not None and not item.alias_info.is_write for item in returns)


def is_free(node: torch.fx.Node) -> bool:
    """Whether a call does no arithmetic on tensors: views, copies, casts, picks from a tuple, sizes, constants."""
    if not isinstance(node.target, OpOverload) or not has_tensor(node):
        return True
    return is_view(node) or node.target in CONSTANT_MAKERS or node.target in ELEMENTARY


def has_tensor(node: torch.fx.Node) -> bool:
    """Whether a node's value holds a tensor."""
    value = node.meta.get("val")
    return any(isinstance(item, torch.Tensor) for item in (value if isinstance(value, (tuple, list)) else (value,)))


def may_alias(node: torch.fx.Node) -> tuple[torch.fx.Node, ...]:
    """The arguments whose storage a node's results may share.

    Composite operators without annotation (``dropout``) and foreign operators may return an argument, so all of theirs count.
    """
    if node.op != "call_function":
        return ()
    target = node.target
    if not isinstance(target, OpOverload):
        return tuple(node.all_input_nodes)
    if _hides_aliases(target):
        return tuple(argument for argument in node.all_input_nodes if has_tensor(argument))
    return ()


def origins(node: torch.fx.Node) -> list[torch.fx.Node]:
    """A node and all whose storage its results may share."""
    found = {node: None}
    stack = [node]
    while stack:
        for source in may_alias(stack.pop()):
            if source not in found:
                found[source] = None
                stack.append(source)
    return list(found)


def may_be_input(node: torch.fx.Node) -> bool:
    """Whether a returned view may be one of an input: then it stays exactly as it is."""
    return any(item.op != "call_function" for item in origins(node))


def sharers(graph: torch.fx.Graph) -> dict[torch.fx.Node, int]:
    """For each node whose storage a result of the graph may share, the indices of those results as bits."""
    bits: dict[torch.fx.Node, int] = {}
    for index, value in enumerate(results(graph)):
        if isinstance(value, torch.fx.Node):
            bits[value] = bits.get(value, 0) | 1 << index
    for node in reversed(graph.nodes):
        if node in bits:
            for source in may_alias(node):
                bits[source] = bits.get(source, 0) | bits[node]
    return bits


def results(graph: torch.fx.Graph) -> tuple[Any, ...]:
    """The flat results that a graph returns."""
    return tuple(graph.output_node().args[0])  # type: ignore[arg-type]
