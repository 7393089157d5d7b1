"""How long each stage of a compilation takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class StageClock:
    """Time of each stage in milliseconds."""

    stage_ms: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Adds the time of the block to ``stage``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.stage_ms[stage] = self.stage_ms.get(stage, 0.0) + (time.perf_counter() - start) * 1e3
