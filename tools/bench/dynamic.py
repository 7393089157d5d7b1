"""Dynamic sizes against static ones on this machine's GPU: latency by kernel-specialization strategy and with static engines, host time.

    python tools/bench/dynamic.py --json dynamic.json [--row resnet50] [--mode static --mode lazy] [--page docs/dynamic_benchmarks.md]
    python tools/bench/dynamic.py --from-json dynamic.json --page docs/dynamic_benchmarks.md

The batch of each model ranges from 1 to 64 and is tuned for the row's own, at which all modes are measured. Each cell runs in a process
of its own; all compile at once, then they measure in turns, one at a time.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from latency import machine
from measure import first_tensor, warm_libraries
from rows import ROWS, Workload
from timing import latencies_ms, throughput_ms
from torch.utils import _pytree as pytree
from turns import Done, in_turn, wait_for_turn

import torchkiln

CHOSEN = ("resnet50 b1", "resnet50 b32", "bert-base 128 tokens b16", "vit_b_16 b8")
MODES: Mapping[str, Mapping[str, Any]] = {
    "static": {},
    "eager": {"kernel_specialization": "eager"},
    "lazy": {"kernel_specialization": "lazy"},
    "none": {"kernel_specialization": "none"},
    "specialize": {"specialize": 10},
}
"""The options of each way to run; all but the first compile for a range."""
LARGEST = 64
_SETTLE_S, _SETTLE_LAZY_S = 0.5, 4.0
"""How long calls run before they are measured, and the same where kernels are compiled meanwhile."""
_TURNS, _ROUNDS, _CALLS = 4, 2, 30
"""The best of a few rounds is taken: a host with neighbours may be slow in any one of them, and for longer than one turn."""
_NEW_SIZES = (5, 6)
"""Batches that are called for the first time once the row's own has run for long."""


def compile_for(workload: Workload, mode: str) -> torchkiln.CompiledModule:
    """The model of a row, compiled for its own batch or for a range around it."""
    options: dict[str, Any] = {"weights": "frozen", "engine": "tensorrt", "require_full_compilation": True, **MODES[mode]}
    if mode == "static":
        return torchkiln.compile(workload.model, workload.args, workload.kwargs, **options)
    [rows] = {len(leaf) for leaf in pytree.tree_leaves((workload.args, dict(workload.kwargs)))}
    # Export takes a size of 1 for fixed.
    args, kwargs = pytree.tree_map(lambda leaf: torch.cat([leaf, leaf]) if rows == 1 else leaf, (workload.args, dict(workload.kwargs)))
    batch = torch.export.Dim("batch", min=1, max=LARGEST)
    names = inspect.signature(workload.model.forward).bind(*args, **kwargs).arguments
    return torchkiln.compile(
        workload.model,
        args,
        kwargs,
        dynamic_shapes={name: {0: batch} for name in names},
        profiles=[torchkiln.Profile("batch", {"batch": (1, rows, LARGEST)})],
        **options,
    )


def host_us(call: Callable[[], Any]) -> float:
    """Median time that a call keeps the host, with the queue of the GPU empty at its start."""
    times = []
    for _ in range(_CALLS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def one_round(call: Callable[[], Any]) -> dict[str, float]:
    """Each figure once."""
    samples = sorted(latencies_ms(call, _CALLS))
    return {
        "median_ms": statistics.median(samples),
        "p90_ms": samples[-len(samples) // 10],
        "throughput_ms": throughput_ms(call, _CALLS),
        "host_us": host_us(call),
    }


def new_sizes_ms(compiled: torchkiln.CompiledModule, workload: Workload) -> list[float]:
    """Time of the first call at each of a few batches."""
    times = []
    for size in _NEW_SIZES:
        args, kwargs = pytree.tree_map(lambda leaf, size=size: torch.cat([leaf] * size)[:size], (workload.args, dict(workload.kwargs)))
        torch.cuda.synchronize()
        begun = time.perf_counter()
        compiled(*args, **kwargs)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begun) * 1e3)
    return times


def measure(row: str, mode: str) -> Mapping[str, Any]:
    """One cell of the table."""
    torch.manual_seed(0)
    workload = ROWS[row]()
    warm_libraries()
    begun = time.perf_counter()
    compiled = compile_for(workload, mode)

    def call() -> Any:
        return compiled(*workload.args, **workload.kwargs)

    with torch.no_grad():
        expected = first_tensor(workload.model(*workload.args, **workload.kwargs)).float()
        got = first_tensor(call()).float()
        torch.cuda.synchronize()
        compile_s = time.perf_counter() - begun
        wait_for_turn()
        settled = time.perf_counter() + (_SETTLE_LAZY_S if mode == "lazy" else _SETTLE_S)
        while time.perf_counter() < settled:
            call()
            torch.cuda.synchronize()
        if not compiled.wait_for_static_engines(120):
            raise RuntimeError("no static engine after 120 s")
        rounds: list[dict[str, float]] = []
        for turn in range(_TURNS):
            if turn:
                wait_for_turn()
            rounds += [one_round(call) for _ in range(_ROUNDS)]
        return {
            "row": row,
            "mode": mode,
            **{name: min(figures[name] for figures in rounds) for name in rounds[0]},
            "rounds": rounds,
            "new_sizes_ms": [] if mode == "static" else new_sizes_ms(compiled, workload),
            "compile_s": compile_s,
            "static_engines": [[item.state, item.build_ms, item.reason] for item in compiled.report.static_engines],
            "cosine_to_eager": torch.cosine_similarity(expected.flatten(), got.flatten(), dim=0).item(),
        }


def cell_of(row: str, mode: str, done: Done) -> Mapping[str, Any]:
    """What a process measured, or its error, which does not end the run."""
    if done.returncode != 0:
        return {"row": row, "mode": mode, "error": done.stderr.strip().splitlines()[-1:], "stderr": done.stderr[-4000:]}
    cell: Mapping[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return cell


def page_of(result: Mapping[str, Any]) -> str:
    """The figures as a page."""
    cells = {(cell["row"], cell["mode"]): cell for cell in result["cells"]}
    rows = list(dict.fromkeys(cell["row"] for cell in result["cells"]))
    ranging = [mode for mode in MODES if mode != "static"]
    about = ", ".join(f"{name} {value}" for name, value in result["machine"].items())
    lines = [
        "# Dynamic sizes against static ones",
        "",
        f"`{result['command']}`: {about}. Batch 1 to {LARGEST}, tuned for and measured at the row's own; fp16; median of one call in ms,",
        f"the best of {_TURNS * _ROUNDS} rounds, calls in a row in parentheses, and the ratio of the medians to that of a static compile.",
        "",
        "| model | " + " | ".join(MODES) + " |",
        "|---|" + "---:|" * len(MODES),
        *("| " + " | ".join([row, *(_shown(cells, row, mode) for mode in MODES)]) + " |" for row in rows),
        "",
        "Host time of a call in us:",
        "",
        "| model | " + " | ".join(MODES) + " |",
        "|---|" + "---:|" * len(MODES),
        *("| " + " | ".join([row, *(_host(cells, row, mode) for mode in MODES)]) + " |" for row in rows),
        "",
        f"First calls at batch {', '.join(map(str, _NEW_SIZES))}, one after another, in ms, with the driver's cache of kernels off:",
        "",
        "| model | " + " | ".join(ranging) + " |",
        "|---|" + "---:|" * len(ranging),
        *("| " + " | ".join([row, *(_new(cells, row, mode) for mode in ranging)]) + " |" for row in rows),
    ]
    failed = [f"- {cell['row']}, {cell['mode']}: {' '.join(cell['error'])}" for cell in result["cells"] if "error" in cell]
    return "\n".join([*lines, *(["", "Not measured:", "", *failed] if failed else [])]) + "\n"


def _ran(cells: Mapping[tuple[str, str], Mapping[str, Any]], row: str, mode: str) -> bool:
    return "median_ms" in cells.get((row, mode), {})


def _host(cells: Mapping[tuple[str, str], Mapping[str, Any]], row: str, mode: str) -> str:
    return "{host_us:.0f}".format_map(cells[row, mode]) if _ran(cells, row, mode) else "–"


def _new(cells: Mapping[tuple[str, str], Mapping[str, Any]], row: str, mode: str) -> str:
    return ", ".join(f"{ms:.0f}" for ms in cells[row, mode]["new_sizes_ms"]) if _ran(cells, row, mode) else "–"


def _shown(cells: Mapping[tuple[str, str], Mapping[str, Any]], row: str, mode: str) -> str:
    if not _ran(cells, row, mode):
        return "–"
    cell = cells[row, mode]
    ratio = f", {cell['median_ms'] / cells[row, 'static']['median_ms']:.2f}" if mode != "static" and _ran(cells, row, "static") else ""
    return f"{cell['median_ms']:.3f} ({cell['throughput_ms']:.3f}){ratio}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when a cell failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", default="", help="only rows whose name contains this")
    parser.add_argument("--mode", action="append", choices=MODES, help="only this mode; may be given several times")
    parser.add_argument("--cell", nargs=2, metavar=("ROW", "MODE"), help="measure one cell in this process and print it")
    parser.add_argument("--json", type=Path, help="where the figures are written")
    parser.add_argument("--from-json", type=Path, nargs="+", help="measure nothing, read these figures")
    parser.add_argument("--page", type=Path, help="where the page is written")
    options = parser.parse_args(arguments)
    if options.cell:
        sys.stdout.write(json.dumps(measure(*options.cell)) + "\n")
        return 0
    if options.from_json:
        parts = [json.loads(path.read_text()) for path in options.from_json]
        result = {**parts[0], "cells": [cell for part in parts for cell in part["cells"]]}
    else:
        # Else the first cell of a row would compile kernels for those after it.
        os.environ["CUDA_CACHE_DISABLE"] = "1"
        wanted = [(row, mode) for row in CHOSEN if options.row in row for mode in options.mode or MODES]
        cells = []
        for item, done in zip(wanted, in_turn([[sys.executable, __file__, "--cell", *item] for item in wanted]), strict=True):
            cells.append(cell_of(*item, done))
            sys.stdout.write(f"{', '.join(item)}: {cells[-1].get('median_ms', cells[-1].get('error'))}\n")
            sys.stdout.flush()
        command = shlex.join(["python", "tools/bench/dynamic.py", *sys.argv[1:]])
        result = {"machine": machine(), "command": command, "cells": cells}
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    page = page_of(result)
    sys.stdout.write(page)
    if options.page:
        options.page.write_text(page)
    return int(any("error" in cell for cell in result["cells"]))


if __name__ == "__main__":
    raise SystemExit(main())
