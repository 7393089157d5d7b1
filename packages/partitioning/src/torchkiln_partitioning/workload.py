"""``Workload``: what the calls of a program take, by position, each number computed once."""

from __future__ import annotations

import math

from torchkiln_core.size import Size
from torchkiln_partitioning.cost import Arithmetic
from torchkiln_partitioning.view import ProgramView, Role
from torchkiln_partitioning.work import WorkEstimator, arithmetic, is_elementwise, launches


class Workload:
    """Bytes and operations of the nodes of a view, at the sizes that the program is tuned for.

    Attributes:
        num_bytes: Bytes of each tensor; none for any other node.
    """

    def __init__(self, view: ProgramView) -> None:
        self._view = view
        self._estimator = WorkEstimator(view.program.dims)
        self._elements = self._count_elements()
        # By id, since an operator's own hash is a call of Python; nodes keep their targets alive.
        self._elementwise: dict[int, bool] = {}
        self.num_bytes = [count * each for count, each in zip(self._elements, view.item_bytes, strict=True)]

    def _count_elements(self) -> list[int]:
        known: dict[tuple[Size, ...] | None, int] = {None: 0}
        for sizes in dict.fromkeys(self._view.sizes):
            if sizes is not None:
                known[sizes] = math.prod(map(self._estimator.evaluate, sizes))
        return [known[sizes] for sizes in self._view.sizes]

    def bytes_of(self, position: int) -> int:
        """Bytes of a tensor; none for any other node."""
        return self.num_bytes[position]

    def moved_bytes_of(self, position: int) -> int:
        """Bytes that a call reads and writes; those of the parts where it has several results."""
        view, num_bytes = self._view, self.num_bytes
        moved = num_bytes[position]
        if view.sizes[position] is None:
            moved = sum(num_bytes[user] for user in view.readers[position] if view.roles[user] is Role.PART)
        for other in view.reads[position]:
            moved += num_bytes[other]
        return moved

    def flops_of(self, position: int) -> int:
        """Operations of a call, as ``WorkEstimator.flops_of``."""
        node = self._view.nodes[position]
        target = node.target
        elementwise = self._elementwise.get(id(target))
        if elementwise is None:
            elementwise = self._elementwise[id(target)] = is_elementwise(target)
        if elementwise:
            elements = self._elements
            most = elements[position]
            for other in self._view.reads[position]:
                if elements[other] > most:
                    most = elements[other]
            return most
        return self._estimator.flops_of(node)

    def launches_of(self, position: int) -> int:
        """How many plain calls an eager call takes as long as, as ``WorkEstimator.launches_of``."""
        return launches(self._view.nodes[position].target)

    def arithmetic_of(self, position: int) -> Arithmetic:
        """What decides how fast these are, as ``WorkEstimator.arithmetic_of``."""
        node = self._view.nodes[position]
        if self._view.sizes[position] is None:
            return self._estimator.arithmetic_of(node)
        return arithmetic(node.target, self._view.item_bytes[position])

    def lies_in_order(self, position: int) -> bool:
        """Whether a tensor is contiguous; dimensions of size 1 lie anywhere."""
        node = self._view.nodes[position]
        if self._view.devices[position] is None or position in self._view.varying:
            return self._estimator.lies_in_order(node)
        return bool(node.meta["val"].is_contiguous())
