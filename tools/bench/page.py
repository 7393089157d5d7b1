"""The page of figures, written from the JSON of ``latency.py``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from modes import MODES, PEERS

Cells = Mapping[tuple[str, str], Mapping[str, Any]]

STAGES = ("export", "lower", "partition", "convert", "build", "load", "first run")


def table_page(result: Mapping[str, Any]) -> str:
    """Markdown: latency, compile time by stage, host memory, each with every mode that was measured."""
    cells = {(cell["row"], cell["mode"]): cell for cell in result["cells"] if "error" not in cell}
    rows = list(dict.fromkeys(row for row, _ in cells))
    where = result["machine"]
    parts = [
        "# Benchmarks",
        f"{where['gpu']}, {where['library']}, torch {where['torch']}, Python {where['python']}, {where['date']}. "
        'fp16, random weights, `weights="frozen"`, static shapes.',
        f"Written by `{result['command']}`. Every cell is a process of its own, without caches on disk.",
        "## Latency",
        "Milliseconds of one call between two CUDA events with an idle GPU before it, so that host time counts: "
        "median of 200 (10th to 90th percentile). Ratio: best of the others by torchkiln; above 1, torchkiln is faster.",
        _table(("model", *MODES, "ratio"), ([row, *(_spread(cells, row, mode) for mode in MODES), _ratio(cells, row)] for row in rows)),
        "## Calls in a row",
        "Milliseconds per call of 200 calls without waiting between them.",
        _table(("model", *MODES), ([row, *(_number(cells, row, mode, "throughput_ms", 3) for mode in MODES)] for row in rows)),
        "## Compile time",
        "Seconds, the first run included; then torchkiln's stages in milliseconds.",
        _table(
            ("model", *(mode for mode in MODES if mode != "eager"), *STAGES),
            (
                [
                    row,
                    *(_seconds(cells, row, mode) for mode in MODES if mode != "eager"),
                    *(_stage(cells, row, stage) for stage in STAGES),
                ]
                for row in rows
            ),
        ),
        "## Host memory",
        "Megabytes: weights, and the peak of resident memory while compiling and first running, minus that before.",
        _table(
            ("model", "weights", *MODES, "torchkiln, compile alone", "torchkiln allowed"),
            (
                [
                    row,
                    _megabytes(cells, row, "torchkiln", "weights_bytes"),
                    *(_megabytes(cells, row, mode, "host_peak_bytes") for mode in MODES),
                    _megabytes(cells, row, "torchkiln", "compile_peak_bytes"),
                    _allowed(cells, row),
                ]
                for row in rows
            ),
        ),
        "Allowed: 2.5 times the weights plus 500 MB. With torchkiln the first run compiles GPU kernels; under `torch.compile` it is the "
        "compilation itself.",
        "## Agreement",
        "Cosine of the first result to eager's, in fp16.",
        _table(("model", *MODES), ([row, *(_number(cells, row, mode, "cosine_to_eager", 6) for mode in MODES)] for row in rows)),
    ]
    failed = [f"- {cell['row']}, {cell['mode']}: {' '.join(cell['error'])}" for cell in result["cells"] if "error" in cell]
    if failed:
        parts += ["## Failed", "\n".join(failed)]
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _number(cells: Cells, row: str, mode: str, field: str, digits: int) -> str:
    cell = cells.get((row, mode))
    return "–" if cell is None else f"{cell[field]:.{digits}f}"


def _spread(cells: Cells, row: str, mode: str) -> str:
    cell = cells.get((row, mode))
    return "–" if cell is None else f"{cell['median_ms']:.3f} ({cell['p10_ms']:.3f} to {cell['p90_ms']:.3f})"


def _ratio(cells: Cells, row: str) -> str:
    others = [cells[row, mode]["median_ms"] for mode in PEERS if (row, mode) in cells]
    ours = cells.get((row, "torchkiln"))
    return "–" if ours is None or not others else f"{min(others) / ours['median_ms']:.2f}"


def _seconds(cells: Cells, row: str, mode: str) -> str:
    cell = cells.get((row, mode))
    return "–" if cell is None else f"{cell['compile_ms'] / 1e3:.1f}"


def _stage(cells: Cells, row: str, stage: str) -> str:
    cell = cells.get((row, "torchkiln"))
    return "–" if cell is None else f"{cell['stage_ms'].get(stage, 0.0):.0f}"


def _megabytes(cells: Cells, row: str, mode: str, field: str) -> str:
    cell = cells.get((row, mode))
    return "–" if cell is None else f"{cell[field] / 1e6:.0f}"


def _allowed(cells: Cells, row: str) -> str:
    cell = cells.get((row, "torchkiln"))
    return "–" if cell is None else f"{(2.5 * cell['weights_bytes'] + 0.5e9) / 1e6:.0f}"
