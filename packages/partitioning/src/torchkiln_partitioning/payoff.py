"""Which engine segments pay: those with enough calls whose estimated gain is worth their border."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch.fx

from torchkiln_core.options import PartitionOptions
from torchkiln_core.rejection import Rejection
from torchkiln_partitioning.classify import reject
from torchkiln_partitioning.cost import DEFAULT_MODEL, Content, SegmentWork, measure
from torchkiln_partitioning.divide import Division, Group, call_count
from torchkiln_partitioning.levels import Kind
from torchkiln_partitioning.placement import Placement
from torchkiln_partitioning.view import Role, is_tensor


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about an engine segment, with the numbers.

    Attributes:
        calls: Names of its calls, in graph order.
        work: What it does.
        engine_us: Estimated time in an engine; ``work.torch_us`` is that in PyTorch.
        rule: Why it runs in PyTorch, or ``None`` where it is an engine.
    """

    calls: tuple[str, ...]
    work: SegmentWork
    engine_us: float
    rule: str | None


class Judge:
    """Refuses engine segments that do not pay, and remembers every decision.

    Args:
        options: ``min_block_size`` and ``border_cost``.
        forced: Calls that the user wants in an engine, however small its segment is.
    """

    def __init__(self, options: PartitionOptions, forced: Iterable[torch.fx.Node]) -> None:
        self._minimum = options.min_block_size
        small_wanted = options.min_block_size < PartitionOptions().min_block_size
        self._asks_model = options.border_cost == "on" or (options.border_cost == "auto" and not small_wanted)
        self._forced = frozenset(forced)
        self._decisions: dict[tuple[str, ...], Decision] = {}

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Every segment that was considered, in the order of the last time."""
        return tuple(self._decisions.values())

    def __call__(self, division: Division) -> dict[torch.fx.Node, Rejection]:
        """The calls of engine segments that do not pay; none where the whole program is one engine."""
        refused: dict[torch.fx.Node, Rejection] = {}
        for group, content in _contents(division):
            work = measure(content, division.placement.work)
            engine_us = DEFAULT_MODEL.in_engine_us(work)
            verdict = self._verdict(group, work, engine_us) if len(division.groups) > 1 else None
            names = tuple(node.name for node in group.calls)
            self._decisions[names] = Decision(names, work, engine_us, verdict and verdict[0])
            if verdict is not None:
                refused.update({node: reject(node, *verdict) for node in group.calls})
        return refused

    def _verdict(self, group: Group, work: SegmentWork, engine_us: float) -> tuple[str, str] | None:
        if not self._forced.isdisjoint(group.calls):
            return None
        if work.calls < self._minimum:
            return "min-block-size", f"expected at least {self._minimum} calls in an engine segment, got {work.calls}"
        if self._asks_model and engine_us > work.torch_us:
            return "border-cost", (
                f"expected an engine segment that saves time, got {work.calls} calls estimated at {work.torch_us:.0f} us in PyTorch and "
                f"{engine_us:.0f} us in an engine with {work.inputs} inputs and {work.outputs} outputs "
                f"({work.input_bytes + work.output_bytes} bytes)"
            )
        return None


def _contents(division: Division) -> list[tuple[Group, Content]]:
    """The engine groups of a division, with what crosses their borders."""
    placement = division.placement
    homes = {node: number for number, group in enumerate(division.groups) for node in group.calls}
    results = {value for value in placement.view.results if isinstance(value, torch.fx.Node)}
    return [
        (group, _content(group, number, placement, (homes, results)))
        for number, group in enumerate(division.groups)
        if group.kind is Kind.ENGINE
    ]


def _content(group: Group, number: int, placement: Placement, known: tuple[Mapping[torch.fx.Node, int], set[torch.fx.Node]]) -> Content:
    homes, results = known
    roles, owners = placement.view.roles, placement.owners
    inputs: dict[torch.fx.Node, None] = {}
    weights: dict[torch.fx.Node, None] = {}
    outputs: list[torch.fx.Node] = []
    copies = placement.copies_for(group.calls)
    for call in (*copies, *group.calls):
        for other in call.all_input_nodes:
            if roles[other] is Role.WEIGHT:
                weights[other] = None
            elif is_tensor(other) and (homes[owners[other]] != number if other in owners else roles[other] is Role.INPUT):
                inputs[other] = None
    for call in group.calls:
        for value in (call, *(user for user in call.users if roles.get(user) is Role.PART)):
            if is_tensor(value) and (value in results or any(homes.get(user, number) != number for user in value.users)):
                outputs.append(value)
    return Content(group.calls, call_count(placement, group.calls, len(copies)), tuple(inputs), outputs, tuple(weights))
