"""The benchmark's page says what was measured, and what failed; memory peaks are seen."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path
from typing import Any

import dynamic
import latency
import pytest
from host_memory import HostMemory
from page import table_page
from rows import ROWS
from turns import in_turn

from torchkiln_core import Options

BENCH = Path(__file__).resolve().parent.parent / "bench"


def cell(row: str, mode: str, median_ms: float) -> dict[str, Any]:
    return {
        "row": row,
        "mode": mode,
        "median_ms": median_ms,
        "p10_ms": median_ms * 0.9,
        "p90_ms": median_ms * 1.1,
        "throughput_ms": median_ms * 0.8,
        "stage_ms": {"export": 1000.0, "build": 234.0, "first run": 500.0},
        "compile_ms": 1734.0,
        "weights_bytes": 100_000_000,
        "compile_peak_bytes": 300_000_000,
        "host_peak_bytes": 400_000_000,
        "cosine_to_eager": 0.999999,
    }


def test_the_page_compares_with_the_best_of_the_others() -> None:
    machine = {"gpu": "G", "torch": "2", "library": "rtx 1", "python": "3", "date": "2026-01-01"}
    cells = [cell("net b1", "eager", 4.0), cell("net b1", "inductor", 3.0), cell("net b1", "torchkiln", 1.5)]
    cells.append({"row": "net b1", "mode": "inductor reduce-overhead", "error": ["RuntimeError: no graphs"], "stderr": ""})
    page = table_page({"machine": machine, "command": "python bench", "cells": cells})
    assert "| net b1 | 4.000 (3.600 to 4.400) | 3.000 (2.700 to 3.300) | – | 1.500 (1.350 to 1.650) | 2.00 |" in page
    assert "| net b1 | 1.7 | – | 1.7 | 1000 | 0 | 0 | 0 | 234 | 0 | 500 |" in page
    assert "| net b1 | 100 | 400 | 400 | – | 400 | 300 | 750 |" in page
    assert "net b1, inductor reduce-overhead: RuntimeError: no graphs" in page


def test_shards_keep_the_modes_of_a_row_together() -> None:
    cells = [(row, mode) for row in "abc" for mode in "xy"]
    parts = [latency.shard_of(cells, f"{index}/2") for index in (1, 2)]
    assert sorted(parts[0] + parts[1]) == cells
    assert {row for row, _ in parts[0]}.isdisjoint(row for row, _ in parts[1])
    with pytest.raises(ValueError, match="--shard"):
        latency.shard_of(cells, "3/2")


@pytest.mark.skipif(sys.platform != "linux", reason="the high-water mark is Linux's")
def test_a_peak_that_is_gone_is_still_seen() -> None:
    memory = HostMemory()
    # Pages of its own: the allocator may have as many left from before.
    with mmap.mmap(-1, 64 << 20) as pages:
        pages.write(bytes(64 << 20))
    assert 60e6 < memory.peak_bytes() < 500e6


def test_every_row_names_a_model() -> None:
    help_text = subprocess.run([sys.executable, str(BENCH / "latency.py"), "--help"], capture_output=True, text=True, check=True).stdout
    assert "--shard" in help_text
    assert len(ROWS) == 7


def dynamic_cell(row: str, mode: str, median_ms: float) -> dict[str, Any]:
    figures = {"median_ms": median_ms, "throughput_ms": median_ms / 2, "host_us": 30.0}
    return {"row": row, "mode": mode, **figures, "new_sizes_ms": [] if mode == "static" else [800.0, 900.4]}


def test_the_page_of_dynamic_sizes_has_ratios_to_static() -> None:
    cells = [dynamic_cell("net b1", "static", 2.0), dynamic_cell("net b1", "lazy", 3.0)]
    cells.append({"row": "net b1", "mode": "eager", "error": ["RuntimeError: no kernel"], "stderr": ""})
    page = dynamic.page_of({"machine": {"gpu": "G"}, "command": "python bench", "cells": cells})
    assert "| net b1 | 2.000 (1.000) | – | 3.000 (1.500), 1.50 | – | – |" in page
    assert "| net b1 | 30 | – | 30 | – | – |" in page
    assert "| net b1 | – | 800, 900 | – | – |" in page
    assert "- net b1, eager: RuntimeError: no kernel" in page


def test_dynamic_rows_are_rows_and_their_modes_options() -> None:
    assert set(dynamic.CHOSEN) <= set(ROWS)
    for options in dynamic.MODES.values():
        Options.from_keywords(options)


def test_processes_measure_one_after_another_when_all_are_ready(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    code = """
import sys, time
sys.path.insert(0, sys.argv[1])
from turns import wait_for_turn
def say(word):
    with open(sys.argv[2], "a") as file:
        print(word, file=file)
if sys.argv[3] == "fails":
    raise ValueError("no")
say("prepared")
for turn in range(2 if sys.argv[3] == "twice" else 1):
    wait_for_turn()
    say(f"{sys.argv[3]}-{turn}-begins")
    time.sleep(0.1)
    say(f"{sys.argv[3]}-{turn}-ends")
    print(turn)
"""
    commands = [[sys.executable, "-c", code, str(BENCH), str(log), name] for name in ("twice", "fails", "once")]
    done = list(in_turn(commands))
    assert [(item.returncode, item.stdout.split()) for item in done] == [(0, ["0", "1"]), (1, []), (0, ["0"])]
    assert done[1].stderr.endswith("ValueError: no\n")
    turns = ["twice-0", "once-0", "twice-1"]
    assert log.read_text().split() == ["prepared", "prepared", *(f"{turn}-{what}" for turn in turns for what in ("begins", "ends"))]
