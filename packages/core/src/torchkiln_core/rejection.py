"""Why a call stays in PyTorch, and who decides it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch.fx

from torchkiln_core.call import OpCall, source_of


@dataclass(frozen=True, slots=True)
class Rejection:
    """One call that no engine takes. ``rule`` is a stable id, the message says what was expected and found.

    Rules: ``no-converter``, ``dtype``, ``rank``, ``static``, ``equals``, ``requires`` from converters; ``torch-executed-op``,
    ``torch-executed-module``, ``node-override``, ``min-block-size``, ``border-cost``, ``effect``, ``device``, ``layout``, ``complex``,
    ``symint``, ``range``, ``constant`` from partitioning; from the frontend ``build-failed`` for calls that could not be converted or
    built, ``deterministic`` for those whose results depend on the order of writes, ``benchmark`` for those that are faster in PyTorch,
    ``body`` for graphs of higher-order calls that cannot be programs of their own.
    """

    target: str
    node: str
    rule: str
    message: str
    where: str | None = None

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        return f"{self.target} ({self.node}) [{self.rule}]: {self.message}{place}"

    @staticmethod
    def of(call: OpCall, rule: str, message: str) -> Rejection:
        """A rejection of ``call``."""
        return Rejection(target_name(call.target), call.node.name, rule, message, call.where)

    @staticmethod
    def of_node(node: torch.fx.Node, rule: str, message: str) -> Rejection:
        """A rejection of a node, also of one that an ``OpCall`` cannot describe."""
        return Rejection(target_name(node.target), node.name, rule, message, source_of(node))


@functools.lru_cache(maxsize=4096)
def target_name(target: Callable[..., Any] | str) -> str:
    """Name of an operator as users write it, such as ``aten.relu.default``."""
    text = str(target)
    return text if not text.startswith("<") else getattr(target, "__name__", text)


@dataclass(frozen=True, slots=True)
class Requires:
    """A condition that a converter or a decomposition has for a call; ``text`` says in words what must hold.

    Attributes:
        text: What is required, such as "at least one dimension".
        holds: Decides from the call's arguments and metadata. Of several conditions one may rely on those before it.
        rule: The id in ``Rejection.rule``.
    """

    text: str
    holds: Callable[[OpCall], bool]
    rule: str = "requires"

    def problem(self, call: OpCall) -> str | None:
        """What is required where it does not hold, or ``None``."""
        return None if self.holds(call) else f"requires {self.text}"


class SupportOracle(Protocol):
    """What lowering and partitioning know of converters."""

    @property
    def targets(self) -> frozenset[Callable[..., Any]]:
        """Operators that have a converter (which may still refuse a particular call)."""
        ...

    def reject(self, call: OpCall) -> Rejection | None:
        """Why ``call`` cannot be converted, or ``None`` when it can."""
        ...
