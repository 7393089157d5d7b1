"""How fast programs are divided, and whether the border cost model decides well.

    python tools/bench/partition.py [--json cpu.json]                 # synthetic programs, one core, no GPU
    python tools/bench/partition.py --split --counts 100000           # with the graphs of the segments
    python tools/bench/partition.py --gpu [--json gpu.json]           # ten mixed models and the constants of the model, on a GPU

The figures are printed as one line of JSON, then PASS, or FAIL with exit status 1 when a limit is missed: 100,000 calls in 2 s (15 s with
graphs), time per call at most 1.5 times that of 10,000 calls, and on a GPU no decision more than 5 % slower than engines for all that can
be in engines, or PyTorch for all.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SHARES = (0.01, 0.1, 0.5)
COUNTS = (10_000, 100_000, 1_000_000)
DECIDE_LIMIT_S, SPLIT_LIMIT_S, GROWTH_LIMIT, SLOWER_LIMIT = 2.0, 15.0, 1.5, 1.05
REPEATS = {10_000: 5, 100_000: 2}


def time_division(count: int, share: float, *, split: bool) -> dict[str, Any]:
    """CPU seconds of one process for the division of a program of that many calls; the best of a few for small ones."""
    import torch
    from synthetic import RefuseOne, synthetic_program

    from torchkiln_core import PartitionOptions
    from torchkiln_partitioning import LevelPartitioner

    torch.set_num_threads(1)
    program = synthetic_program(count, share)
    partitioner = LevelPartitioner(PartitionOptions())
    work = partitioner.partition if split else partitioner.decide
    seconds = []
    for _ in range(REPEATS.get(count, 1)):
        begun = time.process_time()
        work(program, RefuseOne())
        seconds.append(time.process_time() - begun)
    return {"count": count, "share": share, "split": split, "seconds": min(seconds)}


def on_cpu(counts: Sequence[int], *, split: bool) -> tuple[list[dict[str, Any]], list[str]]:
    """A table of times, each in a process of its own, and the limits that are missed."""
    rows, missed = [], []
    for share in SHARES:
        base = None
        for count in counts:
            command = [sys.executable, __file__, "--one", str(count), str(share), *(["--split"] if split else [])]
            row = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            each = row["seconds"] / count * 1e6
            base = base or each
            rows.append(row)
            print(f"{count:>9,} calls, {share:>4.0%} unsupported: {row['seconds']:7.2f} s, {each:5.1f} us per call, {each / base:4.2f}")
            limit = SPLIT_LIMIT_S if split else DECIDE_LIMIT_S
            if count == 100_000 and row["seconds"] > limit:
                missed.append(f"{count:,} calls, {share:.0%}: {row['seconds']:.2f} s, limit {limit:g} s")
            if not split and each > GROWTH_LIMIT * base:
                missed.append(f"{count:,} calls, {share:.0%}: {each / base:.2f} times the time per call, limit {GROWTH_LIMIT:g}")
    return rows, missed


def main() -> int:
    """Exit status 1 when a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true", help="measure decisions on this machine's GPU")
    parser.add_argument("--split", action="store_true", help="write the graphs of the segments as well")
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS, help="calls of the synthetic programs")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="where the figures are written")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(time_division(int(options.one[0]), float(options.one[1]), split=options.split)))
        return 0
    if options.model:
        from decisions import compare_sides

        print(json.dumps(compare_sides(options.model)))
        return 0
    if options.gpu:
        from decisions import on_gpu

        result, missed = on_gpu([sys.executable, __file__, "--model"], SLOWER_LIMIT)
    else:
        rows, missed = on_cpu(options.counts, split=options.split)
        result = {"division": rows}
    record = {"command": " ".join(sys.argv), **result, "missed": missed}
    if options.json is not None:
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record))
    for line in missed:
        print("missed:", line)
    print("FAIL" if missed else "PASS")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
