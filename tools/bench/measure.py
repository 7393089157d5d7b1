"""Measures one model in one mode, in this process alone, and prints a JSON object as its last line; ``latency.py`` calls it."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping
from typing import Any

import torch
from host_memory import HostMemory
from modes import MODES
from rows import ROWS
from timing import latencies_ms, throughput_ms


def first_tensor(result: Any) -> torch.Tensor:
    """The tensor that is compared with eager's: the result, or the first part of it."""
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    return leaves[0]


def warm_libraries() -> None:
    """Loads what any program on a GPU loads, so that it counts for no compiler's memory or time."""
    x = torch.randn(64, 64, device="cuda", dtype=torch.float16)
    torch.nn.functional.conv2d((x @ x)[None, None], x[None, None, :3, :3])
    torch.cuda.synchronize()


def measure(row: str, mode: str) -> Mapping[str, Any]:
    """One cell of the table."""
    torch.manual_seed(0)
    workload = ROWS[row]()
    warm_libraries()
    weights = sum(tensor.numel() * tensor.element_size() for tensor in {*workload.model.parameters(), *workload.model.buffers()})
    with torch.inference_mode():
        expected = first_tensor(workload.model(*workload.args, **workload.kwargs)).float()
    with torch.no_grad():
        memory = HostMemory()
        begun = time.perf_counter()
        run, stages = MODES[mode](workload)
        compiled = time.perf_counter()
        compile_peak = memory.peak_bytes()
        got = first_tensor(run(*workload.args, **workload.kwargs)).float()
        torch.cuda.synchronize()
        ready = time.perf_counter()
        peak = memory.peak_bytes()
        samples = sorted(latencies_ms(lambda: run(*workload.args, **workload.kwargs)))
        per_call = throughput_ms(lambda: run(*workload.args, **workload.kwargs))
    return {
        "row": row,
        "mode": mode,
        "median_ms": statistics.median(samples),
        "p10_ms": samples[len(samples) // 10],
        "p90_ms": samples[-len(samples) // 10],
        "throughput_ms": per_call,
        "stage_ms": {**stages, "first run": (ready - compiled) * 1e3},
        "compile_ms": (ready - begun) * 1e3,
        "weights_bytes": weights,
        "compile_peak_bytes": compile_peak,
        "host_peak_bytes": peak,
        "cosine_to_eager": torch.cosine_similarity(expected.flatten(), got.flatten(), dim=0).item(),
    }


def main() -> int:
    """Prints the measured cell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--row", choices=ROWS, required=True)
    parser.add_argument("--mode", choices=MODES, required=True)
    options = parser.parse_args()
    sys.stdout.write(json.dumps(measure(options.row, options.mode)) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
