"""Latency, compile time and host memory of torchkiln against eager and inductor, in one run on this machine's GPU.

    python tools/bench/latency.py --json bench.json [--model resnet50] [--mode torchkiln] [--shard 1/2] [--page docs/benchmarks.md]
    python tools/bench/latency.py --from-json bench.json --page docs/benchmarks.md

Each model and mode runs in a process of its own, one after another, without caches on disk.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from modes import MODES
from page import table_page
from rows import ROWS


def run_cell(row: str, mode: str) -> Mapping[str, Any]:
    """One cell, or its error, which does not end the run."""
    command = [sys.executable, str(Path(__file__).with_name("measure.py")), "--row", row, "--mode", mode]
    with tempfile.TemporaryDirectory() as empty:
        cold = {"TORCHINDUCTOR_CACHE_DIR": f"{empty}/inductor", "TRITON_CACHE_DIR": f"{empty}/triton"}
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **cold}, check=False)
    if done.returncode != 0:
        return {"row": row, "mode": mode, "error": done.stderr.strip().splitlines()[-1:], "stderr": done.stderr[-4000:]}
    cell: Mapping[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return cell


def machine() -> Mapping[str, str]:
    """Where the figures come from."""
    import torch

    import torchkiln_runtime

    library = torchkiln_runtime.require_library()
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "library": f"{library.name} {library.version}",
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def write(result: Mapping[str, Any], path: Path | None) -> None:
    """The figures as JSON, if they are wanted."""
    if path is not None:
        path.write_text(json.dumps(result, indent=1) + "\n")


def shard_of(cells: Sequence[tuple[str, str]], shard: str) -> Sequence[tuple[str, str]]:
    """Every ``n``-th row for ``k/n``: all modes of a row stay together, since they are compared."""
    index, count = map(int, shard.split("/"))
    if not 1 <= index <= count:
        raise ValueError(f"--shard: expected k/n with 1 <= k <= n, got {shard}")
    rows = [row for place, row in enumerate(dict.fromkeys(row for row, _ in cells)) if place % count == index - 1]
    return [cell for cell in cells if cell[0] in rows]


def joined(parts: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """One table of several, which may have been measured with different commands or versions, and on different days."""
    machine = {key: ", ".join(sorted({part["machine"][key] for part in parts})) for key in parts[0]["machine"]}
    command = "` and `".join(part["command"] for part in parts)
    order = list(ROWS)
    cells = sorted((cell for part in parts for cell in part["cells"]), key=lambda cell: order.index(cell["row"]))
    return {"machine": machine, "command": command, "cells": cells}


def main() -> int:
    """Exit status 1 when a cell failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help="only rows whose name contains this; may be given several times")
    parser.add_argument("--mode", action="append", choices=MODES, help="only this mode; may be given several times")
    parser.add_argument("--shard", default="1/1", help="k/n: the k-th of n parts of the rows")
    parser.add_argument("--json", type=Path, help="where the figures are written")
    parser.add_argument("--from-json", type=Path, nargs="+", help="measure nothing, read these figures")
    parser.add_argument("--page", type=Path, help="where the page is written")
    options = parser.parse_args()
    if options.from_json:
        parts = [json.loads(path.read_text()) for path in options.from_json]
        result = joined(parts)
    else:
        rows = [row for row in ROWS if any(part in row for part in options.model or [""])]
        wanted = [(row, mode) for row in rows for mode in options.mode or MODES]
        cells: list[Mapping[str, Any]] = []
        words = (options.json.name if options.json and word == str(options.json) else word for word in sys.argv[1:])
        command = shlex.join(["python", "tools/bench/latency.py", *words])
        result = {"machine": machine(), "command": command, "cells": cells}
        for row, mode in shard_of(wanted, options.shard):
            cells.append(run_cell(row, mode))
            median = cells[-1].get("median_ms")
            sys.stdout.write(f"{row}, {mode}: " + (f"{cells[-1]['error']}\n" if median is None else f"{median:.3f} ms\n"))
            sys.stdout.flush()
            write(result, options.json)  # a run that is cut off keeps what it measured
    write(result, options.json)
    if options.page:
        options.page.write_text(table_page(result))
    return int(any("error" in cell for cell in result["cells"]))


if __name__ == "__main__":
    raise SystemExit(main())
