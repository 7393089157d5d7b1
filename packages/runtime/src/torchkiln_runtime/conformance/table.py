"""The conformance table as text."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
from collections.abc import Sequence

import torch

from torchkiln_runtime.conformance.check import Outcome
from torchkiln_runtime.library import Library

_MARKS = {"exact": "=", "close": "≈", "differs": "≠", "refused": "✗"}

_LEGEND = "Static, dynamic shapes: `=` equal bit by bit, `≈` equal within the dtype's precision, `≠` different, `✗` refused, `·` not run."
_PRECISION = (
    "Precision is 2e-6 (float32), 2e-3 (float16) or 1.6e-2 (bfloat16) of each result; 2, 4, 8 or 16 times that, relative to the mean of "
    "all results at least, for softmax, reductions, normalizations, interpolation, rotations and products. ELU, SELU, SOFTPLUS, "
    "HARD_SIGMOID, SCALED_TANH and GELU may be off by one epsilon of the dtype besides, and rotations by four, for TensorRT rounds "
    "intermediate results. Of random numbers the table compares whether they have the distribution."
)


def table_json(outcomes: Sequence[Outcome], library: Library) -> str:
    """The table as JSON, with what it was made with."""
    return json.dumps({"made_with": _made_with(library), "rows": [dataclasses.asdict(outcome) for outcome in outcomes]}, indent=1)


def table_markdown(outcomes: Sequence[Outcome], library: Library) -> str:
    """The table as Markdown: one line for each layer and case, one column for each dtype, then every row that is not green."""
    made = ", ".join(f"{name} {value}" for name, value in _made_with(library).items())
    lines = ["# Layers of the network record against TensorRT", "", made, ""]
    lines += [_LEGEND, "", _PRECISION]
    dtypes = list(dict.fromkeys(outcome.dtype for outcome in outcomes))
    for layer, members in itertools.groupby(outcomes, key=lambda outcome: outcome.layer):
        lines += ["", f"## {layer}", "", f"| case | {' | '.join(dtypes)} |", f"|---|{'---|' * len(dtypes)}"]
        marks: dict[str, dict[tuple[str, str], str]] = {}
        for outcome in members:
            marks.setdefault(outcome.case, {})[outcome.dtype, outcome.shapes] = _MARKS[outcome.status]
        for case, found in marks.items():
            cells = [f"{found.get((dtype, 'static'), '·')} {found.get((dtype, 'dynamic'), '·')}" for dtype in dtypes]
            lines.append(f"| {case} | {' | '.join('' if cell == '· ·' else cell for cell in cells)} |")
    lines += ["", "## Differences and refusals", ""]
    for outcome in outcomes:
        if not outcome.is_green:
            what = outcome.known or "UNDOCUMENTED"
            lines.append(f"- `{outcome.name}` {outcome.shapes}, {outcome.status}: {what}. {' '.join(outcome.detail.split())[:400]}")
    if all(outcome.is_green for outcome in outcomes):
        lines.append("None.")
    return "\n".join(lines) + "\n"


def summary(outcomes: Sequence[Outcome]) -> str:
    """How many rows showed what, by layer."""
    lines = [f"{'layer':<16}{'exact':>7}{'close':>7}{'differs':>9}{'refused':>9}"]
    for layer in dict.fromkeys(outcome.layer for outcome in outcomes):
        counts = [sum(outcome.layer == layer and outcome.status == status for outcome in outcomes) for status in _MARKS]
        lines.append(f"{layer:<16}{counts[0]:>7}{counts[1]:>7}{counts[2]:>9}{counts[3]:>9}")
    return "\n".join(lines)


def _made_with(library: Library) -> dict[str, str]:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    return {"date": today, library.name: library.version, "torch": torch.__version__, "GPU": gpu}
