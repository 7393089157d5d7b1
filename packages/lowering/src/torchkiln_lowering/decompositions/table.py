"""``Decompositions``: which function stands for which operator. A value: users extend it by making another."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
import torch._decomp
import torch.fx
from torch._ops import OpOverload

from torchkiln_core.call import OpCall
from torchkiln_core.rejection import Requires

Target = Callable[..., Any]
_ONLY_OURS = frozenset({torch.ops.aten.lstm.input})
"""PyTorch's decomposition is for one device: of an LSTM on a CPU it makes calls of a kernel of oneDNN."""


def used_outputs(node: torch.fx.Node) -> frozenset[int] | None:
    """Indices of the results of a multi-result call that somebody reads; ``None`` when the tuple itself is read."""
    used: set[int] = set()
    for user in node.users:
        if user.target is not operator.getitem:
            return None
        if user.users:
            used.add(int(user.args[1]))  # type: ignore[arg-type]
    return frozenset(used)


def always(call: OpCall) -> bool:
    """The condition of a decomposition that holds for every call."""
    return True


def reads_first(call: OpCall) -> bool:
    """Whether nobody reads a result but the first."""
    return used_outputs(call.node) in (frozenset(), frozenset({0}))


def has_dimensions(call: OpCall) -> bool:
    """Whether ``self`` has a dimension."""
    return bool(call.arguments["self"].meta["val"].dim() > 0)


ONLY_FIRST = Requires("that nobody reads a result but the first", reads_first)
"""The limit of decompositions that make no other result."""
HAS_DIMENSIONS = Requires("at least one dimension", has_dimensions)


@dataclass(frozen=True, slots=True)
class Decomposition:
    """A function with the operator's ATen signature, and the calls it is right for.

    Attributes:
        function: Functional torch code. Results that no call of the operator reads may be ``None``.
        applies: Decides from the call's arguments and metadata which calls it is for. The others are left to converters and to PyTorch's
            decompositions, without a word.
        origin: Who wrote it: ``torchkiln``, ``user``, ``torch`` (its tables) or ``composite`` (the operator's own kernel).
        limits: What it requires of those calls. A call that stays in PyTorch is reported with the first that does not hold.
    """

    function: Callable[..., Any]
    applies: Callable[[OpCall], bool] = always
    origin: str = "torchkiln"
    limits: tuple[Requires, ...] = ()

    def takes(self, call: OpCall) -> bool:
        """Whether it is right for a call."""
        return self.applies(call) and all(limit.holds(call) for limit in self.limits)

    def problem(self, call: OpCall) -> str | None:
        """What it requires that a call does not satisfy, or ``None``, as for calls that it is not for."""
        if not self.applies(call):
            return None
        return next((problem for limit in self.limits if (problem := limit.problem(call)) is not None), None)


def _no_rules() -> Mapping[Target, Decomposition]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Decompositions:
    """Decompositions by operator. PyTorch's own tables answer where this one has no rule, or its rule leads nowhere.

    Attributes:
        rules: Ours and the user's.
        excluded: Operators that are never decomposed.
    """

    rules: Mapping[Target, Decomposition] = field(default_factory=_no_rules)
    excluded: frozenset[Target] = frozenset()

    def extended(self, rules: Mapping[Target, Decomposition | Callable[..., Any]]) -> Decompositions:
        """This table with more rules; a rule for the same operator replaces the old one."""
        more = {target: rule if isinstance(rule, Decomposition) else Decomposition(rule, origin="user") for target, rule in rules.items()}
        return Decompositions(MappingProxyType({**self.rules, **more}), self.excluded - frozenset(more))

    def without(self, *targets: Target) -> Decompositions:
        """This table, but ``targets`` are never decomposed, not by PyTorch's tables either."""
        kept = {target: rule for target, rule in self.rules.items() if target not in targets}
        return Decompositions(MappingProxyType(kept), self.excluded | frozenset(targets))

    def problem(self, call: OpCall) -> str | None:
        """What the rule for a call's operator requires that the call does not satisfy, or ``None``."""
        rule = self.rules.get(call.target)
        return None if rule is None else rule.problem(call)

    def candidates(self, call: OpCall) -> tuple[Decomposition, ...]:
        """The decompositions that fit a call, best first."""
        if call.target in self.excluded:
            return ()
        rule = self.rules.get(call.target)
        own = (rule,) if rule is not None and rule.takes(call) else ()
        return own if call.target in _ONLY_OURS or _rounds_otherwise(call) else own + _of_torch(call.target)


def _rounds_otherwise(call: OpCall) -> bool:
    """Whether PyTorch's decomposition rounds bytes of an image otherwise than its kernels, which interpolate in fixed point."""
    if not isinstance(call.target, OpOverload) or "upsample_bi" not in call.target._schema.name:
        return False
    value = next(iter(call.arguments.values())).meta["val"]
    return bool(value.dtype == torch.uint8)


def _of_torch(target: Target) -> tuple[Decomposition, ...]:
    if not isinstance(target, OpOverload):
        return ()
    found: list[Decomposition] = []
    # The operator's own kernel first: it is what eager runs, in whole ATen operators where the table goes down to prims.
    if target._can_decompose():
        found.append(Decomposition(target.decompose, origin="composite"))
    registered = torch._decomp.decomposition_table.get(target)
    if registered is not None:
        found.append(Decomposition(registered, origin="torch"))
    return tuple(found)
