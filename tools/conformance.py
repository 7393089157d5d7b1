"""Runs the conformance table on this machine's GPU, in several processes, and writes it as JSON and Markdown.

    python tools/conformance.py --out docs/conformance [--jobs 8] [--only Unary,TopK]

Most of the time goes into the kernels that TensorRT compiles for each small network, so processes share the work.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

from torchkiln_runtime import require_library
from torchkiln_runtime.conformance import KNOWN, Outcome, all_groups, all_rows, check_group, summary, table_json, table_markdown


def run_group(name: str) -> list[Outcome]:
    """The outcomes of one group of rows."""
    group = next(group for group in all_groups(all_rows()) if group.name == name)
    return list(check_group(group, torch.device("cuda", 0)))


def main() -> int:
    """Exit status 1 when a row differs or is refused and no docstring says so, or a known difference is no longer there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="path without suffix of the two files")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--only", default="", help="layers, separated by commas")
    options = parser.parse_args()
    only = set(filter(None, options.only.split(",")))
    names = [group.name for group in all_groups(all_rows()) if not only or group.name.split("-")[0] in only]
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for name, found in zip(names, pool.map(run_group, names), strict=True):
            sys.stdout.write(f"{name}: {len(found)} rows, {sum(not outcome.is_green for outcome in found)} not green\n")
            outcomes += found
    library = require_library()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_suffix(".json").write_text(table_json(outcomes, library))
    options.out.with_suffix(".md").write_text(table_markdown(outcomes, library))
    sys.stdout.write(summary(outcomes) + "\n")
    differing = [outcome for outcome in outcomes if not outcome.is_green]
    undocumented = [f"{outcome.name}, {outcome.shapes}: {outcome.detail[:200]}" for outcome in differing if outcome.known is None]
    stale = [] if only else [pattern for pattern in KNOWN if not fnmatch.filter([outcome.name for outcome in differing], pattern)]
    for title, lines in (("no docstring says so", undocumented), ("no longer there", stale)):
        sys.stdout.write("".join(f"{title}: {line}\n" for line in lines))
    return 1 if undocumented or stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
