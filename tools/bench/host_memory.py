"""The peak of this process's resident memory over a block."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Self


class HostMemory:
    """Measures by the kernel's own high-water mark, which misses nothing between samples; Linux only.

    ``peak_bytes`` is the highest resident size in the block, minus the size before it.
    """

    peak_bytes: int = 0

    def __enter__(self) -> Self:
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark to the present size
        self._before = _status_bytes("VmRSS")
        return self

    def __exit__(self, *exception: object) -> None:
        self.peak_bytes = _status_bytes("VmHWM") - self._before


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status: expected a line {field}, found none")
