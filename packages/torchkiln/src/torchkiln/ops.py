"""Which operators run in engines, which are decomposed, and which stay in PyTorch: read off the registries of a compilation."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch._decomp
from torch._ops import OpOverload, OpOverloadPacket

from torchkiln_converters import Converter, ConverterRegistry, default_registry
from torchkiln_converters.refusals import REFUSED
from torchkiln_converters.support import Equals
from torchkiln_core.rejection import Requires, target_name
from torchkiln_lowering import Decompositions, standard_decompositions

Status = Literal["converted", "decomposed", "refused"]


@dataclass(frozen=True, slots=True)
class Operator:
    """What becomes of the calls of one operator.

    Attributes:
        name: Such as ``aten.relu.default``.
        status: ``converted`` to layers, ``decomposed`` into other operators, or ``refused``: its calls run in PyTorch.
        dtypes: Of its tensor arguments, where it is converted.
        ranks: Least and largest rank of its first tensor argument, where it is converted.
        dynamic: Whether sizes may be symbolic: ``yes``, or ``partly`` where a rule asks for a static one.
        notes: The converter's further rules, who decomposes it and what that requires, or why it is refused.
    """

    name: str
    status: Status
    dtypes: tuple[str, ...] = ()
    ranks: tuple[int, int] | None = None
    dynamic: Literal["yes", "partly", ""] = ""
    notes: tuple[str, ...] = ()


def table(registry: ConverterRegistry | None = None, decompositions: Decompositions | None = None) -> tuple[Operator, ...]:
    """Every operator that has a converter or a decomposition of torchkiln's, and all that torch tags as core, by name.

    Args:
        registry: The converters; the standard ones and those of installed packages by default.
        decompositions: The decompositions of the lowering; the standard ones by default.
    """
    registry = registry or default_registry()
    decompositions = decompositions or standard_decompositions()
    targets: set[Callable[..., Any]] = {*registry.targets, *decompositions.rules, *core_operators()}
    return tuple(sorted((_operator(target, registry, decompositions) for target in targets), key=lambda item: item.name))


def core_operators() -> Iterator[OpOverload[..., Any]]:
    """The ATen operators that the installed torch tags as core."""
    # torch.ops.aten lists only what this process has looked at.
    names = {name.removeprefix("aten::").partition(".")[0] for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")}
    for name in sorted(names):
        packet = getattr(torch.ops.aten, name, None)
        if isinstance(packet, OpOverloadPacket):
            overloads = (getattr(packet, overload) for overload in packet.overloads())  # type: ignore[no-untyped-call]
            yield from (overload for overload in overloads if torch.Tag.core in overload.tags)


def to_json(operators: tuple[Operator, ...]) -> str:
    """The table as a JSON list of objects."""
    return json.dumps([dataclasses.asdict(item) for item in operators], indent=1)


def to_text(operators: tuple[Operator, ...]) -> str:
    """The table, a line for each operator."""
    width = max(len(item.name) for item in operators)
    return "\n".join(f"{item.name:<{width}}  {item.status:<10}  {_detail(item)}".rstrip() for item in operators)


def to_markdown(operators: tuple[Operator, ...]) -> str:
    """The table as Markdown."""
    lines = ["| operator | | dtypes | ranks | dynamic | notes |", "|---|---|---|---|---|---|"]
    for item in operators:
        ranks = "" if item.ranks is None else f"{item.ranks[0]} to {item.ranks[1]}"
        notes = "; ".join(item.notes).replace("|", "\\|")
        lines.append(f"| `{item.name}` | {item.status} | {', '.join(item.dtypes)} | {ranks} | {item.dynamic} | {notes} |")
    return "\n".join(lines)


def _detail(item: Operator) -> str:
    ranks = "" if item.ranks is None else f"rank {item.ranks[0]} to {item.ranks[1]}"
    dynamic = "some sizes static" if item.dynamic == "partly" else ""
    return "; ".join(filter(None, (" ".join(item.dtypes), ranks, dynamic, *item.notes)))


def _operator(target: Callable[..., Any], registry: ConverterRegistry, decompositions: Decompositions) -> Operator:
    name = target_name(target)
    rule = decompositions.rules.get(target)
    decomposed = () if rule is None else (f"by {rule.origin}", *(f"requires {limit.text}" for limit in rule.limits))
    if target in registry.targets:
        return _converted(name, registry[target], decomposed)
    reason = REFUSED.get(name)
    if reason is not None:
        return Operator(name, "refused", notes=(reason,))
    if rule is not None:
        return Operator(name, "decomposed", notes=decomposed)
    if isinstance(target, OpOverload) and (target._can_decompose() or target in torch._decomp.decomposition_table):
        return Operator(name, "decomposed", notes=("by torch",))
    return Operator(name, "refused", notes=("no converter and no decomposition",))


def _converted(name: str, converter: Converter[...], decomposed: tuple[str, ...]) -> Operator:
    support = converter.support
    rules = [rule for rule in support.rules if isinstance(rule, (Equals, Requires))]
    notes = [f"{rule.argument} must be {rule.value!r}" if isinstance(rule, Equals) else f"requires {rule.text}" for rule in rules]
    notes += [f"{argument}: {', '.join(_names(dtypes))}" for argument, dtypes in support.arguments.items()]
    if support.unordered is not None:
        notes.append("in PyTorch under `deterministic`, where equal indices are given several values")
    if decomposed:
        notes += [f"else decomposed {decomposed[0]}", *decomposed[1:]]
    partly = any(rule.rule == "static" for rule in support.rules)
    ranks = (support.ranks.start, support.ranks.stop - 1)
    return Operator(name, "converted", _names(support.dtypes), ranks, "partly" if partly else "yes", tuple(notes))


def _names(dtypes: frozenset[torch.dtype]) -> tuple[str, ...]:
    return tuple(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
