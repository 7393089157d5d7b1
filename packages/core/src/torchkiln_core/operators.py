"""``OperatorSet``: operators as users name them in an option."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket


class OperatorSet:
    """A set of operators, given as objects or as names such as ``aten.relu``, ``torch.ops.aten.relu.default`` or ``aten::relu``.

    A name without overload stands for all overloads.

    Args:
        option: The option that names them, for errors.
        entries: The operators.

    Raises:
        ValueError: An entry is no operator that PyTorch knows.
    """

    def __init__(self, option: str, entries: Iterable[str | Callable[..., Any]]) -> None:
        entries = tuple(entries)
        known = _known_names() if any(isinstance(entry, str) for entry in entries) else frozenset()
        names = (_read_name(entry, known) if isinstance(entry, str) else _read_object(entry) for entry in entries)
        try:
            self._names = frozenset(names)
        except ValueError as error:
            raise ValueError(f"{option}: {error}") from None

    def __bool__(self) -> bool:
        return bool(self._names)

    def __contains__(self, target: Any) -> bool:
        """Whether it holds the operator of a call."""
        return bool(self._names) and not self._names.isdisjoint(_names_of(target))


def _names_of(target: Any) -> tuple[str, ...]:
    if isinstance(target, OpOverload):
        return str(target), str(target.overloadpacket)
    if isinstance(target, OpOverloadPacket):
        return (str(target),)
    if isinstance(target, HigherOrderOperator):
        return (f"{target.namespace}.{target.__name__}",)
    return ()


def _read_object(entry: Callable[..., Any]) -> str:
    names = _names_of(entry)
    if not names:
        name = getattr(entry, "__name__", repr(entry))
        hint = f"pass torch.ops.aten.{name}" if hasattr(torch.ops.aten, name) else "pass an operator of torch.ops or its name"
        raise ValueError(f"expected an operator such as torch.ops.aten.relu, got {entry!r}; {hint}")
    return names[0]


def _read_name(entry: str, known: frozenset[str]) -> str:
    name = entry.removeprefix("torch.ops.").replace("::", ".")
    if name not in known:
        tries = (name, name if name.startswith("aten.") else f"aten.{name}")
        close = [match for attempt in tries for match in difflib.get_close_matches(attempt, sorted(known), n=1, cutoff=0.7)]
        hint = f"did you mean {close[-1]!r}?" if close else "expected a name such as 'aten.relu' or 'aten.add.Tensor'"
        raise ValueError(f"no operator {entry!r}; {hint}")
    return name


def _known_names() -> frozenset[str]:
    names: set[str] = set()
    for qualified in torch._C._dispatch_get_all_op_names():
        packet, _, overload = qualified.replace("::", ".").partition(".")[2].partition(".")
        space = qualified.partition("::")[0]
        names.update((f"{space}.{packet}", f"{space}.{packet}.{overload or 'default'}"))
    names.update(f"higher_order.{name}" for name in torch._ops._higher_order_ops)
    return frozenset(names)
