"""Which engine segments pay: those with enough calls whose estimated gain is worth their border."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torchkiln_core.options import PartitionOptions
from torchkiln_core.rejection import Rejection
from torchkiln_partitioning.cost import Content, CostModel, SegmentWork, measure
from torchkiln_partitioning.divide import Division, Group, call_count
from torchkiln_partitioning.levels import Kind
from torchkiln_partitioning.placement import Placement
from torchkiln_partitioning.view import NOBODY, Role

Verdict = tuple[str, str]
"""Rule and message of a refusal."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about an engine segment, with the numbers.

    Attributes:
        first: Name of its first call.
        work: What it does.
        engine_us: Estimated time in an engine; ``work.torch_us`` is that in PyTorch.
        rule: Why it runs in PyTorch, or ``None`` where it is an engine.
    """

    first: str
    work: SegmentWork
    engine_us: float
    rule: str | None


@dataclass(frozen=True, slots=True)
class Scope:
    """What is judged.

    Attributes:
        fewest: A division into fewer segments than this is not judged.
        overhead_us: What all engines together must save at least.
    """

    fewest: int
    overhead_us: float


class Judge:
    """Refuses engine segments that do not pay, and remembers every decision.

    Args:
        options: ``min_block_size`` and ``border_cost``.
        forced: Calls that the user wants in an engine, however small its segment is.
        scope: What is judged.
        model: Estimates both sides.
    """

    def __init__(self, options: PartitionOptions, forced: Iterable[int], scope: Scope, model: CostModel) -> None:
        self._scope, self._model = scope, model
        self._minimum = options.min_block_size
        small_wanted = options.min_block_size < PartitionOptions().min_block_size
        self._asks_model = options.border_cost == "on" or (options.border_cost == "auto" and not small_wanted)
        self._shows = options.partition_report is not None
        self._forced = frozenset(forced)
        self._measured: dict[tuple[int, ...], SegmentWork] = {}
        self._decisions: dict[tuple[int, ...], Decision] = {}

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Every segment that was weighed, with what was decided last; all of them where ``partition_report`` asks for the numbers."""
        return tuple(self._decisions.values())

    def __call__(self, division: Division) -> dict[int, Rejection]:
        """The calls of engine segments that do not pay; none where the division has fewer segments than are judged."""
        verdicts: list[tuple[Group, Verdict]] = []
        staying: list[Group] = []
        borders = _Borders(division)
        for number, group in enumerate(division.groups):
            if group.kind is not Kind.ENGINE:
                continue
            spared = self._is_spared(division, group)
            verdict = None if spared else self._on_count(division.placement, group)
            if self._shows or (self._asks_model and not spared and verdict is None):
                verdict = self._weigh(borders, number, group, verdict, spared=spared)
            if verdict is None:
                staying.append(group)
            else:
                verdicts.append((group, verdict))
        if self._asks_model and not any(self._is_spared(division, group) for group in staying):
            verdicts += self._together(staying)
        nodes = division.placement.view.nodes
        return {call: Rejection.of_node(nodes[call], *verdict) for group, verdict in verdicts for call in group.calls}

    def _is_spared(self, division: Division, group: Group) -> bool:
        return len(division.groups) < self._scope.fewest or not self._forced.isdisjoint(group.calls)

    def _together(self, staying: Sequence[Group]) -> list[tuple[Group, Verdict]]:
        """Segments that pay one by one, where all of them save less than what a program with engines takes besides."""
        decisions = {group.calls: self._decisions[group.calls] for group in staying}
        saved_us = sum(decision.work.torch_us - decision.engine_us for decision in decisions.values())
        if saved_us >= self._scope.overhead_us:
            return []
        message = (
            f"expected engines that save at least {self._scope.overhead_us:.0f} us, what a compiled program takes besides its segments, "
            f"got {len(staying)} that save {saved_us:.0f} us"
        )
        for calls, decision in decisions.items():
            self._decisions[calls] = replace(decision, rule="border-cost")
        return [(group, ("border-cost", message)) for group in staying]

    def _on_count(self, placement: Placement, group: Group) -> Verdict | None:
        count = call_count(placement, group.calls)
        if count >= self._minimum:
            return None
        return "min-block-size", f"expected at least {self._minimum} calls in an engine segment, got {count}"

    def _weigh(self, borders: _Borders, number: int, group: Group, verdict: Verdict | None, *, spared: bool) -> Verdict | None:
        """Estimates both sides of a segment, and asks the model where nothing else has decided."""
        work = self._measured.get(group.calls)
        if work is None:
            # What crosses the border follows from the calls inside, whatever the rest of the division is.
            work = self._measured[group.calls] = measure(borders.content(number, group.calls), borders.placement.work, self._model)
        engine_us = self._model.engine_time_us(work)
        if verdict is None and self._asks_model and not spared and engine_us > work.torch_us:
            verdict = "border-cost", _cost_message(work, engine_us)
        first = borders.placement.view.nodes[group.calls[0]].name
        self._decisions[group.calls] = Decision(first, work, engine_us, verdict and verdict[0])
        return verdict


def _cost_message(work: SegmentWork, engine_us: float) -> str:
    return (
        f"expected an engine segment that saves time, got {work.calls} calls estimated at {work.torch_us:.0f} us in PyTorch and "
        f"{engine_us:.0f} us in an engine with {work.inputs} inputs and {work.outputs} outputs "
        f"({work.input_bytes + work.output_bytes} bytes)"
    )


class _Borders:
    """What crosses the borders of a division's groups."""

    def __init__(self, division: Division) -> None:
        self.placement = division.placement
        self._view = division.placement.view
        self._results = self._view.result_positions()
        self._homes = [NOBODY] * len(self._view.nodes)
        for number, group in enumerate(division.groups):
            for call in group.calls:
                self._homes[call] = number

    def content(self, number: int, calls: Sequence[int]) -> Content[int]:
        """The content of the group of that number."""
        copies = self.placement.copies_for(calls)
        owners, homes, roles, reads, sizes = self.placement.owners, self._homes, self._view.roles, self._view.reads, self._view.sizes
        weight, given = Role.WEIGHT, Role.INPUT
        inputs: dict[int, None] = {}
        weights: dict[int, None] = {}
        for call in itertools.chain(copies, calls):
            for other in reads[call]:
                owner = owners[other]
                if owner >= 0:
                    if homes[owner] != number and sizes[other] is not None:
                        inputs[other] = None
                elif roles[other] is weight:
                    weights[other] = None
                elif roles[other] is given and sizes[other] is not None:
                    inputs[other] = None
        outputs = [value for call in calls for value in self._values_of(call) if self._leaves(value, number)]
        return Content(calls, call_count(self.placement, calls), list(inputs), outputs, tuple(weights))

    def _values_of(self, call: int) -> Iterable[int]:
        sizes, owners = self._view.sizes, self.placement.owners
        if sizes[call] is not None:
            return (call,)
        return (user for user in self._view.readers[call] if sizes[user] is not None and owners[user] != NOBODY)

    def _leaves(self, value: int, number: int) -> bool:
        if value in self._results:
            return True
        homes = self._homes
        for user in self._view.readers[value]:
            home = homes[user]
            if home not in (number, NOBODY):
                return True
        return False
