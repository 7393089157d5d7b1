"""``Draft``: what a segment consists of, before its graph is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch.fx

from torchkiln_core.size import Size
from torchkiln_partitioning.divide import Division, Group
from torchkiln_partitioning.levels import Kind
from torchkiln_partitioning.placement import Placement
from torchkiln_partitioning.sizes import DimOf, Literal, Recomputed, expression_of, is_number
from torchkiln_partitioning.view import Role, aten, dims_of


@dataclass(frozen=True, slots=True)
class Draft:
    """The content of a segment.

    Attributes:
        kind: Where it runs.
        body: Nodes that it runs, in an order in which they can run.
        replaced: For numbers of ``body``, what is read instead of running the node.
        inputs: Values from other segments or the caller, in graph order.
        weights: Placeholders of weights, in graph order.
    """

    kind: Kind
    body: tuple[torch.fx.Node, ...]
    replaced: Mapping[torch.fx.Node, Literal | DimOf]
    inputs: tuple[torch.fx.Node, ...]
    weights: tuple[torch.fx.Node, ...]


@dataclass(frozen=True, slots=True)
class Homes:
    """Number of the group that a value is made in; ``-1`` for what is known before any group runs.

    A number or a copy of a cheap call counts as made in the last group that it depends on.
    """

    number: Mapping[torch.fx.Node, int]

    @staticmethod
    def of(division: Division) -> Homes:
        """The homes of every value, in one pass over the program."""
        placement = division.placement
        call_home = {node: number for number, group in enumerate(division.groups) for node in group.calls}
        homes: dict[torch.fx.Node, int] = {}
        for node in placement.view.nodes:
            owner = placement.owners.get(node)
            if owner is not None:
                homes[node] = call_home[owner]
            elif placement.outside_source(node) is not None:
                homes[node] = -1
            else:
                homes[node] = max((homes[other] for other in node.all_input_nodes), default=-1)
        return Homes(homes)


def draft_segments(division: Division) -> tuple[Draft, ...]:
    """The content of every group of a division."""
    homes = Homes.of(division)
    parts: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for node in division.placement.view.nodes:
        if division.placement.view.roles[node] is Role.PART:
            parts.setdefault(division.placement.owners[node], []).append(node)
    drafts: list[Draft] = []
    for number, group in enumerate(division.groups):
        content = [node for call in group.calls for node in (call, *parts.get(call, ()))]
        drafts.append(_Drafting(division.placement, homes, group, number).finish(content))
    return tuple(drafts)


class _Drafting:
    def __init__(self, placement: Placement, homes: Homes, group: Group, number: int) -> None:
        self._placement = placement
        self._homes = homes
        self._kind = group.kind
        self._number = number
        self._body: dict[torch.fx.Node, tuple[int, int, int]] = {}
        self._replaced: dict[torch.fx.Node, Literal | DimOf] = {}
        self._inputs: set[torch.fx.Node] = set()
        self._weights: set[torch.fx.Node] = set()
        self._numbers: dict[torch.fx.Node, None] = {}

    def finish(self, content: list[torch.fx.Node]) -> Draft:
        index = self._placement.view.index
        self._take(content)
        if self._kind is Kind.ENGINE:
            self._take_numbers_from_shapes()
        body = tuple(sorted(self._body, key=self._body.__getitem__))
        inputs, weights = (tuple(sorted(nodes, key=index.__getitem__)) for nodes in (self._inputs, self._weights))
        return Draft(self._kind, body, self._replaced, inputs, weights)

    def _take(self, content: list[torch.fx.Node]) -> None:
        """Adds nodes and all that they read, up to the border; an engine's numbers are set aside."""
        waiting = list(content)
        while waiting:
            node = waiting.pop()
            if node not in self._body:
                self._body[node] = (self._placement.view.index[node], 0, 0)
                waiting.extend(other for other in node.all_input_nodes if self._belongs_inside(other))

    def _belongs_inside(self, node: torch.fx.Node) -> bool:
        """Whether a value that the body reads is made in the body; notes it as an input, weight or number otherwise."""
        if node in self._placement.owners and node in self._placement.view.sizes:
            if self._homes.number[node] == self._number:
                return True
            self._inputs.add(node)
            return False
        role = self._placement.view.roles[node]
        if role is Role.WEIGHT:
            self._weights.add(node)
            return False
        if role is Role.ATTRIBUTE or node in self._placement.copied:
            return True
        if self._kind is Kind.ENGINE and is_number(node):
            self._numbers[node] = None
            return False
        literal = self._placement.outside_source(node)
        if isinstance(literal, Literal):
            self._body[node], self._replaced[node] = (-1, 1, self._placement.view.index[node]), literal
            return False
        if self._homes.number[node] == self._number:
            return True
        self._inputs.add(node)
        return False

    def _take_numbers_from_shapes(self) -> None:
        shapes: dict[Size, DimOf] = {}
        for tensor in sorted(self._inputs, key=self._placement.view.index.__getitem__):
            for dim, size in enumerate(dims_of(tensor)):
                shapes.setdefault(size, DimOf(tensor, dim))
        waiting = list(self._numbers)
        taken: set[torch.fx.Node] = set()
        while waiting:
            node = waiting.pop()
            if node in taken:
                continue
            taken.add(node)
            source = self._source(node, shapes)
            if isinstance(source, Recomputed):
                waiting.extend(node.all_input_nodes)
                continue
            self._replaced[node] = source
            if isinstance(source, DimOf) and self._homes.number[source.tensor] != self._number:
                self._inputs.add(source.tensor)
        self._order_numbers(taken)

    def _source(self, node: torch.fx.Node, shapes: Mapping[Size, DimOf]) -> Literal | DimOf | Recomputed:
        """Where a number comes from: a tensor that is there anyway, else what the recipe says."""
        recipe = self._placement.recipes.recipes[node]
        size = expression_of(node)
        if isinstance(recipe, Literal):
            return recipe
        if size is not None and size in shapes:
            return shapes[size]
        if node.target is aten.sym_size.int:
            tensor, dim = node.args[0], node.args[1]
            if isinstance(tensor, torch.fx.Node) and isinstance(dim, int) and tensor in self._body:
                return DimOf(tensor, dim)
        return recipe

    def _order_numbers(self, numbers: set[torch.fx.Node]) -> None:
        """Places each number right behind the last tensor or number that it is read from."""
        index = self._placement.view.index
        for node in sorted(numbers, key=index.__getitem__):
            source = self._replaced.get(node)
            if isinstance(source, DimOf):
                after = index[source.tensor] if source.tensor in self._body else -1
            elif source is None:
                after = max((self._body[other][0] for other in node.all_input_nodes), default=-1)
            else:
                after = -1
            self._body[node] = (after, 1, index[node])
