"""Counts how much of sixty-odd models runs in engines, without building any.

    python tools/coverage.py --json coverage.json [--page docs/coverage.md] [--only timm] [--jobs 2]
    python tools/coverage.py --from-json coverage.json --page docs/coverage.md

Each model is loaded with random weights in a process of its own, and captured, lowered, divided and converted as by
``torchkiln.compile(model, args, min_block_size=1)``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

ALL_OF_CALLS, MOST_OF_FLOPS = 1.0, 0.95


def cover(name: str) -> Mapping[str, Any]:
    """What becomes of one model; a model that cannot be captured or converted has an ``error``."""
    import torch
    from coverage_models import MODELS

    import torchkiln

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, args, kwargs = MODELS[name]()
    begun = time.perf_counter()
    try:
        with torch.no_grad():
            report = torchkiln.explain(model, args, kwargs, min_block_size=1)
    except Exception as error:  # noqa: BLE001 - the table shows it, and the tool fails in the end
        return {"model": name, "error": f"{type(error).__name__}: {error}"[:2000]}
    refusals = Counter(f"{rejection.target} [{rejection.rule}]" for rejection in report.rejections)
    return {
        "model": name,
        "calls": sum(len(segment.calls) for segment in report.segments),
        "segments": [segment.kind for segment in report.segments],
        "share_of_calls": report.shares.calls,
        "share_of_flops": report.shares.flops,
        "refusals": dict(refusals.most_common()),
        "seconds": round(time.perf_counter() - begun, 1),
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """The counts that matter."""
    whole = [row for row in rows if row.get("segments") == ["engine"] and row["share_of_calls"] == ALL_OF_CALLS]
    most = [row for row in rows if row.get("share_of_flops", 0) >= MOST_OF_FLOPS]
    failed = [row["model"] for row in rows if "error" in row]
    text = f"{len(rows)} models: {len(whole)} wholly in one engine, {len(most)} with at least {MOST_OF_FLOPS:.0%} of FLOPs in engines"
    return text + (f"; failed: {', '.join(failed)}" if failed else "")


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table in Markdown."""
    lines = [
        "# How much of real models runs in engines",
        "",
        f"Written by `tools/coverage.py`. {summary(rows)}. Random weights, fp32, fixed sizes, `min_block_size=1`.",
        "",
        "| model | calls | segments | calls in engines | FLOPs in engines | left in PyTorch |",
        "|---|---|---|---|---|---|",
    ]
    for row in sorted(rows, key=lambda row: row["model"]):
        if "error" in row:
            lines.append(f"| {row['model']} | | | | | {row['error'].splitlines()[0]} |".replace("||", "| |"))
            continue
        kinds = Counter(row["segments"])
        refused = ", ".join(f"`{what}` x {count}" for what, count in row["refusals"].items())
        lines.append(
            f"| {row['model']} | {row['calls']} | {kinds['engine']} engine, {kinds['torch']} torch "
            f"| {row['share_of_calls']:.1%} | {row['share_of_flops']:.1%} | {refused} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Counts, prints a line per model, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where the figures are written")
    parser.add_argument("--from-json", type=Path, help="count nothing, read these figures")
    parser.add_argument("--page", type=Path, help="where the table is written")
    parser.add_argument("--only", default="", help="only models whose name contains this")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    options = parser.parse_args()
    if options.from_json:
        rows = json.loads(options.from_json.read_text())
    else:
        from coverage_models import MODELS

        rows = []
        with ProcessPoolExecutor(options.jobs, max_tasks_per_child=1) as pool:
            for done in as_completed([pool.submit(cover, name) for name in MODELS if options.only in name]):
                rows.append(done.result())
                sys.stdout.write(json.dumps(rows[-1]) + "\n")
                sys.stdout.flush()
                if options.json:
                    options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if options.page:
        options.page.write_text(page(rows))
    sys.stdout.write(summary(rows) + "\n")
    return int(any("error" in row for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
