"""How long calls take on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

WARM_UP = 30
SAMPLES = 200


def _two_events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    """The start and the end of a measured stretch of the GPU's work."""
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def latencies_ms(call: Callable[[], Any], samples: int = SAMPLES) -> list[float]:
    """Time of each call between two CUDA events, with the queue of the GPU empty at its start: host work counts."""
    start, end = _two_events()
    for _ in range(WARM_UP):
        call()
    times = []
    for _ in range(samples):
        torch.cuda.synchronize()
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return times


def throughput_ms(call: Callable[[], Any], samples: int = SAMPLES) -> float:
    """Time per call of many calls in a row, without waiting between them."""
    start, end = _two_events()
    torch.cuda.synchronize()
    start.record()
    for _ in range(samples):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / samples
