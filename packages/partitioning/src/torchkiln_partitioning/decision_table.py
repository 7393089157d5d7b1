"""``partition_report``: the numbers behind a division as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from torchkiln_core.errors import PartitionError
from torchkiln_partitioning.cost import Arithmetic, CostModel
from torchkiln_partitioning.payoff import Decision

_NAMES = {Arithmetic.NARROW: "at most 16 bits", Arithmetic.MATRICES: "fp32 matrices", Arithmetic.CONVOLUTIONS: "fp32 convolutions"}
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
    border = (
        f"{model.call_us:g} us per eager call, {model.engine_us:g} us per engine, {model.input_us:g} us per input and "
        f"{model.output_us:g} us per output of an engine, {model.program_us:g} us per program with engines, "
        f"{model.bytes_per_us / 1e6:g} TB/s"
    )
    speeds = ", ".join(_speeds(arithmetic, model) for arithmetic in Arithmetic)
    return "\n".join([*lines, f"model: {border}; TFLOP/s in PyTorch and in engines: {speeds}"])


def _speeds(arithmetic: Arithmetic, model: CostModel) -> str:
    in_pytorch, in_engines = (flops_per_us / 1e6 for flops_per_us in (model.in_pytorch(arithmetic), model.in_engines(arithmetic)))
    return f"{_NAMES[arithmetic]} {in_pytorch:.3g} and {in_engines:.3g}"


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
