"""Which calls do more than compute their result, so that their order is part of the program's meaning."""

from __future__ import annotations

import enum
import functools
import operator
from typing import Any

import torch
import torch.fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx.node import _side_effectful_functions

from torchkiln_core.call import TRAINED_STATISTICS, OpCall, draws, writes_statistics

_RANDOM_HIGHER_ORDER = frozenset({"run_and_save_rng_state", "run_with_rng_state", "graphsafe_run_with_rng_state", "run_dtensor_rng_op"})
_WRITING_HIGHER_ORDER = frozenset({"triton_kernel_wrapper_mutation", "call_torchbind", "inductor_compiled_code", "print"})

_COLLECTIVE_NAMESPACES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd"})
"""Operators that every process must call in the same order."""


class Effect(enum.Enum):
    """What a call does besides computing its result."""

    WRITES = "writes into its arguments or the world"
    """Runs after every earlier call and before every later one."""
    ORDERED = "draws random numbers, checks a value or talks to other processes"
    """Keeps its order among effects."""


class EffectFinder:
    """Tells the effects of the calls of a module's graph."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self._module = module
        # By id, since an operator's own hash is a call of Python; nodes keep their targets alive.
        self._plain: set[int] = set()

    def effect_of(self, node: torch.fx.Node) -> Effect | None:
        """What a node does besides computing its result."""
        if id(node.target) in self._plain or node.op != "call_function":
            return None
        if _effect_of_target(node.target) is _PLAIN:
            self._plain.add(id(node.target))
            return None
        return _effect_of(node, self._module)


def _effect_of(node: torch.fx.Node, module: torch.nn.Module) -> Effect | None:
    """The effect of a call; the bodies of a higher-order call are attributes of ``module`` and count as part of it."""
    own = _own_effect(node)
    if own is Effect.WRITES or not isinstance(node.target, HigherOrderOperator):
        return own
    inner = [own, *(_own_effect(call) for call, _ in calls_inside(node, module))]
    return next((effect for effect in Effect if effect in inner), None)


def graphs_of(node: torch.fx.Node, module: torch.nn.Module) -> dict[str, torch.fx.GraphModule]:
    """The graphs that a higher-order call of the graph of ``module`` runs, by name."""
    names = [str(read.target) for read in node.all_input_nodes if read.op == "get_attr" and node.op == "call_function"]
    values = {name: operator.attrgetter(name)(module) for name in names}
    return {name: value for name, value in values.items() if isinstance(value, torch.fx.GraphModule)}


def calls_inside(node: torch.fx.Node, module: torch.nn.Module) -> list[tuple[torch.fx.Node, torch.nn.Module]]:
    """The calls in the graphs that a higher-order call runs, and in theirs, each with the module that holds its own graphs."""
    found: list[tuple[torch.fx.Node, torch.nn.Module]] = []
    waiting = [(node, module)]
    while waiting:
        for body in graphs_of(*waiting.pop()).values():
            calls: list[tuple[torch.fx.Node, torch.nn.Module]] = [(part, body) for part in body.graph.nodes if part.op == "call_function"]
            found += calls
            waiting += calls
    return found


def _own_effect(node: torch.fx.Node) -> Effect | None:
    if node.op != "call_function":
        return None
    effect, depends = _effect_of_target(node.target)
    if not depends or not isinstance(node.target, OpOverload):
        return effect
    call = OpCall.from_node(node)
    if writes_statistics(call):
        return Effect.WRITES
    return Effect.ORDERED if call.target not in TRAINED_STATISTICS and draws(call) else effect


_PLAIN: tuple[None, bool] = (None, False)
"""What ``_effect_of_target`` says of an operator whose calls only compute their results."""


@functools.lru_cache(maxsize=4096)
def _effect_of_target(target: Any) -> tuple[Effect | None, bool]:
    """The effect of every call of an operator, and whether a call may have another: by its arguments, or in its bodies."""
    if isinstance(target, HigherOrderOperator):
        name = target.__name__
        if name in _WRITING_HIGHER_ORDER:
            return Effect.WRITES, False
        return Effect.ORDERED if name in _RANDOM_HIGHER_ORDER else None, True
    if isinstance(target, OpOverload):
        if target._schema.is_mutable:
            return Effect.WRITES, False
        if not target._schema.returns or target.namespace in _COLLECTIVE_NAMESPACES:
            return Effect.ORDERED, False
        if target in TRAINED_STATISTICS:
            return None, True
        if torch.Tag.nondeterministic_seeded in target.tags:
            return Effect.ORDERED if target in _side_effectful_functions else None, True
    return (Effect.ORDERED, False) if target in _side_effectful_functions else _PLAIN
