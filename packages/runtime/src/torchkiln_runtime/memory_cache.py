"""A plan cache in memory."""

from __future__ import annotations

import threading
from collections import OrderedDict

from torchkiln_core import Plan


class MemoryPlanCache:
    """Keeps the plans used last. Threads may share it.

    Args:
        max_size: Number of plans kept.

    Raises:
        ValueError: ``max_size`` is less than 1.
    """

    def __init__(self, max_size: int = 64) -> None:
        self._plans: OrderedDict[str, Plan] = OrderedDict()
        self._lock = threading.Lock()
        self.max_size = max_size

    @property
    def max_size(self) -> int:
        """Number of plans kept; a smaller one drops those unused for longest."""
        return self._max_size

    @max_size.setter
    def max_size(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"plan cache: expected a size of at least 1, got {count}")
        with self._lock:
            self._max_size = count
            self._shrink()

    def get(self, key: str) -> Plan | None:
        """The plan under ``key``, if it is kept."""
        with self._lock:
            plan = self._plans.get(key)
            if plan is not None:
                self._plans.move_to_end(key)
            return plan

    def put(self, plan: Plan) -> None:
        """Keeps ``plan`` and drops the one unused for longest when there are too many."""
        with self._lock:
            self._plans[plan.key] = plan
            self._plans.move_to_end(plan.key)
            self._shrink()

    def _shrink(self) -> None:
        while len(self._plans) > self._max_size:
            self._plans.popitem(last=False)

    def clear(self) -> None:
        """Drops every plan."""
        with self._lock:
            self._plans.clear()

    def __len__(self) -> int:
        return len(self._plans)
