"""``partition_report``: the numbers behind a division as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from torchkiln_core.errors import PartitionError
from torchkiln_partitioning.cost import Arithmetic, CostModel
from torchkiln_partitioning.payoff import Decision

_HEAD = ("calls", "GFLOP", "weights MB", "in", "in MB", "out", "out MB", "PyTorch us", "engine us", "decision", "first call")


def publish(decisions: Sequence[Decision], model: CostModel, sink: Callable[[str], object] | str) -> None:
    """Gives the table to a function, or writes it to the file of that name.

    Raises:
        PartitionError: The file cannot be written.
    """
    text = decision_table(decisions, model)
    if not isinstance(sink, str):
        sink(text)
        return
    try:
        Path(sink).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise PartitionError(
            f"partition_report: expected a file that can be written, got {sink!r}: {error}",
            fix="name a file in a folder that is there, or give a function such as print",
        ) from error


def decision_table(decisions: Sequence[Decision], model: CostModel) -> str:
    """A line per engine segment that was considered, with what it costs on either side."""
    rows = [_HEAD, *map(_row, decisions)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    note = (
        f"model: {model.call_us:g} us per eager call, {model.engine_us:g} us per engine, {model.input_us:g} us per input and "
        f"{model.output_us:g} us per output of an engine, {model.program_us:g} us per program with engines, "
        f"{model.bytes_per_us / 1e6:g} TB/s, {model.narrow_flops_per_us / 1e6:g} TFLOP/s of at most 16 bits, {_wide(model)}; products take "
        f"{model.product_share:g} of their time in an engine"
    )
    return "\n".join([*lines, note])


def _wide(model: CostModel) -> str:
    sides = {
        "matrices in PyTorch": model.in_pytorch(Arithmetic.MATRICES),
        "convolutions there": model.in_pytorch(Arithmetic.CONVOLUTIONS),
        "engines": model.in_engines(Arithmetic.MATRICES) * model.product_share,
    }
    return ", ".join(f"{flops_per_us / 1e6:g} of 32 for {side}" for side, flops_per_us in sides.items())


def _row(decision: Decision) -> tuple[str, ...]:
    work = decision.work
    return (
        str(work.calls),
        f"{work.flops / 1e9:.3f}",
        f"{work.weight_bytes / 1e6:.2f}",
        str(work.inputs),
        f"{work.input_bytes / 1e6:.2f}",
        str(work.outputs),
        f"{work.output_bytes / 1e6:.2f}",
        f"{work.torch_us:.0f}",
        f"{decision.engine_us:.0f}",
        "engine" if decision.rule is None else f"PyTorch ({decision.rule})",
        decision.first,
    )
