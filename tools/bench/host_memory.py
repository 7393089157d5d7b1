"""The peak of this process's resident memory."""

from __future__ import annotations

import gc
from pathlib import Path


class HostMemory:
    """Measures from its making, by the kernel's own high-water mark, which misses nothing between samples; Linux only."""

    def __init__(self) -> None:
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark to the present size
        self._before = _status_bytes("VmRSS")

    def peak_bytes(self) -> int:
        """The highest resident size so far, minus the size at the beginning."""
        return _status_bytes("VmHWM") - self._before


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status: expected a line {field}, found none")
