"""``Draft``: what a segment consists of, before its graph is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torchkiln_core.size import Size
from torchkiln_partitioning.divide import Division
from torchkiln_partitioning.levels import Kind
from torchkiln_partitioning.placement import Placement
from torchkiln_partitioning.sizes import DimOf, Literal, Recomputed, expression_of
from torchkiln_partitioning.view import NOBODY, Role, aten


@dataclass(frozen=True, slots=True)
class Draft:
    """The content of a segment; nodes are given by position.

    Attributes:
        kind: Where it runs.
        body: Nodes that it runs, in an order in which they can run.
        replaced: For numbers of ``body``, what is read instead of running the node.
        inputs: Values from other segments or the caller, in graph order.
        weights: Placeholders of weights, in graph order.
    """

    kind: Kind
    body: tuple[int, ...]
    replaced: Mapping[int, Literal | DimOf]
    inputs: tuple[int, ...]
    weights: tuple[int, ...]

    def computed(self) -> Iterator[int]:
        """The nodes of ``body`` that it runs, without the numbers that it reads from somewhere."""
        return (position for position in self.body if position not in self.replaced)


def homes_of(division: Division) -> list[int]:
    """Number of the group that each value is made in; ``NOBODY`` for what is known before any group runs.

    A number or a copy of a cheap call counts as made in the last group that it depends on.
    """
    placement = division.placement
    homes = [NOBODY] * len(placement.view.nodes)
    for number, group in enumerate(division.groups):
        for call in group.calls:
            homes[call] = number
    for position, owner in enumerate(placement.owners):
        if owner != NOBODY:
            homes[position] = homes[owner]
        elif placement.outside_source(position) is None:
            homes[position] = max((homes[other] for other in placement.view.reads[position]), default=NOBODY)
    return homes


def draft_segments(division: Division) -> tuple[Draft, ...]:
    """The content of every group of a division."""
    homes = homes_of(division)
    view, owners, part = division.placement.view, division.placement.owners, Role.PART
    parts: dict[int, list[int]] = {}
    for position, role in enumerate(view.roles):
        if role is part:
            parts.setdefault(owners[position], []).append(position)
    drafts: list[Draft] = []
    for number, group in enumerate(division.groups):
        content = list(group.calls)
        if parts:
            content.extend(position for call in group.calls for position in parts.get(call, ()))
        drafts.append(_Drafting(division.placement, homes, group.kind, number).finish(content))
    return tuple(drafts)


class _Drafting:
    def __init__(self, placement: Placement, homes: Sequence[int], kind: Kind, number: int) -> None:
        self._placement = placement
        self._view = placement.view
        self._homes = homes
        self._kind = kind
        self._number = number
        self._body: set[int] = set()
        # Where a number stands that is read from a shape: behind what it is read from, not where the program has it.
        self._moved: dict[int, int] = {}
        self._replaced: dict[int, Literal | DimOf] = {}
        self._inputs: set[int] = set()
        self._weights: set[int] = set()
        self._numbers: dict[int, None] = {}

    def finish(self, content: list[int]) -> Draft:
        self._take(content)
        if self._numbers:
            self._take_numbers_from_shapes()
        body = sorted(self._body)
        if self._moved:
            body.sort(key=lambda position: (self._moved.get(position, position), position in self._moved, position))
        return Draft(self._kind, tuple(body), self._replaced, tuple(sorted(self._inputs)), tuple(sorted(self._weights)))

    def _take(self, waiting: list[int]) -> None:
        """Adds nodes and all that they read, up to the border; an engine's numbers are set aside."""
        body, inputs, homes, number = self._body, self._inputs, self._homes, self._number
        reads, owners, sizes = self._view.reads, self._placement.owners, self._view.sizes
        while waiting:
            position = waiting.pop()
            if position in body:
                continue
            body.add(position)
            for other in reads[position]:
                if owners[other] >= 0 and sizes[other] is not None:
                    if homes[other] == number:
                        waiting.append(other)
                    else:
                        inputs.add(other)
                elif self._belongs_inside(other):
                    waiting.append(other)

    def _belongs_inside(self, position: int) -> bool:
        """Whether a value that the body reads and that is no call's tensor is made in the body; notes it as something else otherwise."""
        role = self._view.roles[position]
        if role is Role.WEIGHT:
            self._weights.add(position)
            return False
        if role is Role.ATTRIBUTE or position in self._placement.copied:
            return True
        if self._kind is Kind.ENGINE and position in self._view.numbers:
            self._numbers[position] = None
            return False
        literal = self._placement.outside_source(position)
        if isinstance(literal, Literal):
            self._body.add(position)
            self._moved[position], self._replaced[position] = -1, literal
            return False
        if self._homes[position] == self._number:
            return True
        self._inputs.add(position)
        return False

    def _take_numbers_from_shapes(self) -> None:
        shapes: dict[Size, DimOf] = {}
        for tensor in sorted(self._inputs):
            for dim, size in enumerate(self._view.sizes[tensor] or ()):
                shapes.setdefault(size, DimOf(tensor, dim))
        waiting = list(self._numbers)
        taken: set[int] = set()
        while waiting:
            position = waiting.pop()
            if position in taken:
                continue
            taken.add(position)
            source = self._source(position, shapes)
            if isinstance(source, Recomputed):
                waiting.extend(self._view.reads[position])
                continue
            self._replaced[position] = source
            if isinstance(source, DimOf) and self._homes[source.tensor] != self._number:
                self._inputs.add(source.tensor)
        self._order_numbers(taken)

    def _source(self, position: int, shapes: Mapping[Size, DimOf]) -> Literal | DimOf | Recomputed:
        """Where a number comes from: a tensor that is there anyway, else what the recipe says."""
        recipe = self._placement.recipes.recipes[position]
        node = self._view.nodes[position]
        size = expression_of(node)
        if isinstance(recipe, Literal):
            return recipe
        if size is not None and size in shapes:
            return shapes[size]
        if node.target is aten.sym_size.int:
            tensor, dim = self._view.reads[position][0], node.args[1]
            if isinstance(dim, int) and tensor in self._body:
                return DimOf(tensor, dim)
        return recipe

    def _order_numbers(self, numbers: set[int]) -> None:
        """Places each number right behind the last tensor or number that it is read from."""
        body, moved = self._body, self._moved
        for position in sorted(numbers):
            source = self._replaced.get(position)
            if isinstance(source, DimOf):
                after = source.tensor if source.tensor in body else -1
            elif source is None:
                after = max((moved.get(other, other) for other in self._view.reads[position]), default=-1)
            else:
                after = -1
            moved[position] = after
        body.update(numbers)
