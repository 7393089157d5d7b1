"""What a file holds of a report besides its segments and reasons, as JSON data and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from torchkiln.report.model import BorderValue, CallReport, Report, SegmentReport, SizeReport


def report_to_record(report: Report) -> dict[str, Any]:
    """JSON data of the figures of a report."""
    record = {
        "inputs": report.inputs,
        "results": report.results,
        "sizes": [asdict(size) for size in report.sizes],
        "segments": {
            segment.name: {
                "flops": segment.flops,
                "weights": dict(segment.weights),
                "inputs": [asdict(value) for value in segment.inputs],
                "outputs": [asdict(value) for value in segment.outputs],
                "details": [asdict(call) for call in segment.details],
            }
            for segment in report.segments
        },
    }
    # A file takes no tuples: they would come back as lists.
    data: dict[str, Any] = json.loads(json.dumps(record))
    return data


def with_record(report: Report, record: Mapping[str, Any] | None) -> Report:
    """A report with the figures that ``report_to_record`` wrote; they stay unknown where a file holds none.

    Raises:
        KeyError, TypeError, ValueError: The data is not what was written.
    """
    if record is None:
        return report
    return replace(
        report,
        inputs=tuple(map(str, record["inputs"])),
        results=tuple(map(str, record["results"])),
        sizes=tuple(map(_size, record["sizes"])),
        segments=tuple(_segment(segment, record["segments"][segment.name]) for segment in report.segments),
    )


def _segment(segment: SegmentReport, record: Mapping[str, Any]) -> SegmentReport:
    return replace(
        segment,
        flops=int(record["flops"]),
        weights={name: int(size) for name, size in record["weights"].items()},
        inputs=tuple(map(_border_value, record["inputs"])),
        outputs=tuple(map(_border_value, record["outputs"])),
        details=tuple(map(_call, record["details"])),
    )


def _size(record: Mapping[str, Any]) -> SizeReport:
    low, opt, high = (int(record[name]) for name in ("min", "opt", "max"))
    return SizeReport(str(record["symbol"]), tuple(map(str, record["places"])), low, opt, high, bool(record["assumed"]))


def _call(record: Mapping[str, Any]) -> CallReport:
    name, target, module, result = (str(record[name]) for name in ("name", "target", "module", "result"))
    where = None if record["where"] is None else str(record["where"])
    return CallReport(name, target, module, result, tuple(map(str, record["reads"])), int(record["flops"]), where)


def _border_value(record: Mapping[str, Any]) -> BorderValue:
    profile = {symbol: (int(low), int(opt), int(high)) for symbol, (low, opt, high) in record["profile"].items()}
    return BorderValue(str(record["name"]), str(record["type"]), profile, int(record["num_bytes"]), bool(record["data_dependent"]))
