"""How the demo prints a report and latencies."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from torchkiln.report import Report

RUNS = 50
WARM_UP = 10


def print_report(console: Console, report: Report) -> None:
    """A table of the segments, then what stays in PyTorch and the time of each stage."""
    table = Table("segment", "runs on", "calls", "layers", "plan", "built in")
    for segment in report.segments:
        runs_on = report.engine if segment.kind == "engine" else "PyTorch"
        plans = "\n".join(f"{target}: {size / 1e6:.1f} MB" for target, size in (segment.plan_bytes or {}).items()) or "-"
        built = f"{segment.build_ms:.0f} ms" if segment.plan_bytes else "-"
        table.add_row(segment.name, runs_on, str(len(segment.calls)), str(segment.layers or "-"), plans, built)
    console.print(table)
    for rejection in report.rejections:
        console.print(f"stays in PyTorch: {rejection}", highlight=False, markup=False)
    console.print("time: " + ", ".join(f"{stage} {ms:.0f} ms" for stage, ms in report.stage_ms.items()))


def print_latency(console: Console, eager: Callable[..., Any], compiled: Callable[..., Any], args: tuple[torch.Tensor, ...]) -> None:
    """Median latency of both on a GPU, in full float32; nothing on a CPU, where the reference engine says nothing about speed."""
    if args[0].device.type != "cuda":
        return
    # Engines keep float32 unless told otherwise; by default torch's convolutions do not.
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        before, after = _median_ms(eager, args), _median_ms(compiled, args)
    console.print(
        f"latency in float32 (median of {RUNS}): eager {before:.3f} ms, compiled {after:.3f} ms, {before / after:.2f} times as fast"
    )


def _median_ms(call: Callable[..., Any], args: tuple[torch.Tensor, ...]) -> float:
    for _ in range(WARM_UP):
        call(*args)
    times: list[float] = []
    for _ in range(RUNS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        call(*args)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)
