"""What a compilation did, or would do: segments in order, reasons for what stays in PyTorch, shares, times."""

from __future__ import annotations

from torchkiln.report.describe import describe_partition
from torchkiln.report.model import BorderValue, CallReport, Report, SegmentReport, Shares, SizeReport, StaticEngineReport
from torchkiln.report.nesting import with_bodies
from torchkiln.report.record import report_to_record, with_record

__all__ = [
    "BorderValue",
    "CallReport",
    "Report",
    "SegmentReport",
    "Shares",
    "SizeReport",
    "StaticEngineReport",
    "describe_partition",
    "report_to_record",
    "with_bodies",
    "with_record",
]
