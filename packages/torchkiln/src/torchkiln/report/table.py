"""The report as a compact table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchkiln.report.fixes import fix_of

if TYPE_CHECKING:
    from torchkiln.report.model import Report, SegmentReport, SizeReport, StaticEngineReport
    from torchkiln_core import Rejection

_HEAD = ("segment", "calls", "layers", "FLOPs", "weights", "border", "operators")
_WITHOUT_ENGINE = {
    "model": "without an engine the model itself runs, not its lowered graph",
    "file": "without an engine the lowered graph runs in PyTorch; a file does not hold the model itself",
}
_SHOWN_SEGMENTS = 40
_SHOWN_CALLS = 4


def to_table(report: Report) -> str:
    """Segments in order, shares, refused calls by rule and operator, plans and times."""
    kinds = Counter(segment.kind for segment in report.segments)
    place = "(explain builds none)" if report.engine == "not built" else f"on {report.engine}"
    shares = {"calls": report.shares.calls, "FLOPs": report.shares.flops, "weights": report.shares.weights}
    shown = ", ".join(f"{share:.0%} of {what}" for what, share in shares.items() if share is not None)
    lines = [f"{kinds['engine']} engine segment(s) {place}, {kinds['torch']} in PyTorch; in engines: {shown}"]
    if report.segments and not kinds["engine"]:
        lines.append(_WITHOUT_ENGINE[report.origin])
    lines += _grid([_HEAD, *map(_row, report.segments[:_SHOWN_SEGMENTS])])
    if len(report.segments) > _SHOWN_SEGMENTS:
        lines.append(f"  ... and {len(report.segments) - _SHOWN_SEGMENTS} more segments")
    for segment in report.segments:
        for target, size in (segment.plan_bytes or {}).items():
            lines.append(f"  {segment.name}: plan for {target}, {size / 1e6:.1f} MB, built in {segment.build_ms:.0f} ms")
    lines += [*map(_size, report.sizes), *map(_static_engine, report.static_engines)]
    if report.rejections:
        lines.append(f"{len(report.rejections)} call(s) stay in PyTorch:")
        lines += _reasons(report.rejections)
    if report.stage_ms:
        lines.append("time: " + ", ".join(f"{stage} {ms:.0f} ms" for stage, ms in report.stage_ms.items()))
    return "\n".join(lines)


def _size(size: SizeReport) -> str:
    places = f" ({', '.join(size.places[:_SHOWN_CALLS])})" if size.places else ""
    default = f"; {size.max} is the default, since nothing bounds it" if size.assumed else ""
    return f"  size {size.symbol}{places}: {size.min} to {size.max}, tuned for {size.opt}{default}"


def _static_engine(engine: StaticEngineReport) -> str:
    shapes = ", ".join(str(list(shape)) for shape in engine.shapes)
    more = {"building": "", "failed": f", {engine.reason}"}.get(engine.state, f", built in {engine.build_ms:.0f} ms")
    return f"  {engine.segment}: static engine for {shapes}: {engine.state}{more}"


def _row(segment: SegmentReport) -> tuple[str, ...]:
    common = Counter(name.removeprefix("aten.").removesuffix(".default") for name in segment.calls).most_common()
    shown = ", ".join(name if count == 1 else f"{name} x{count}" for name, count in common[:_SHOWN_CALLS])
    more = f", {len(common) - _SHOWN_CALLS} more" if len(common) > _SHOWN_CALLS else ""
    return (
        segment.name,
        str(len(segment.calls)),
        str(segment.layers or "-"),
        _known(segment.flops, ""),
        _known(segment.weight_bytes, "B"),
        _known(segment.border_bytes, "B"),
        shown + more,
    )


def _known(count: int | None, unit: str) -> str:
    return "?" if count is None else scaled(count) + unit


def scaled(count: int) -> str:
    """A count with a prefix of the SI, such as ``1.50 G``."""
    value, prefix = float(count), ""
    for larger in ("k", "M", "G", "T", "P"):
        if value < 1000:
            break
        value, prefix = value / 1000, larger
    return f"{value:.0f} {prefix}" if prefix == "" or value >= 100 else f"{value:.{2 if value < 10 else 1}f} {prefix}"


def _grid(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for first, *numbers, last in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(numbers, widths[1:-1], strict=True)), last]
        lines.append("  " + "  ".join(cells))
    return lines


def _reasons(rejections: Sequence[Rejection]) -> list[str]:
    """Calls that are refused for one reason stand together, with the source line of the first."""
    alike: dict[tuple[str, str, str], list[Rejection]] = {}
    for rejection in rejections:
        alike.setdefault((rejection.target, rejection.rule, rejection.message), []).append(rejection)
    lines: list[str] = []
    for (target, rule, message), group in alike.items():
        names = ", ".join(item.node for item in group[:_SHOWN_CALLS]) + (", ..." if len(group) > _SHOWN_CALLS else "")
        times = f" x{len(group)}" if len(group) > 1 else ""
        lines.append(f"  {target}{times} ({names}) [{rule}]: {message}")
        if group[0].where is not None:
            lines.append(f"    at {group[0].where}")
        lines.append(f"    fix: {fix_of(group[0])}")
    return lines
