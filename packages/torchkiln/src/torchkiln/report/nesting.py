"""The graphs that higher-order calls run, in the report of the program that makes the calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchkiln.bodies import Body
from torchkiln.report.model import BorderValue, CallReport, Report, SegmentReport
from torchkiln_core import Rejection


def with_bodies(report: Report, inner: Sequence[tuple[Body, Report]]) -> Report:
    """The report with the segments of each body behind the one that runs it, such as ``torch_1/true_graph_0/engine_0``.

    What a body takes has the name that it has outside; all else is named by the path to it.
    """
    if not inner:
        return report
    segments: list[SegmentReport] = []
    for segment in report.segments:
        segments.append(segment)
        for body, found in inner:
            if body.segment == segment.name:
                segments += [_Naming(body).segment(item) for item in found.segments]
    refused = [_Naming(body).rejection(item) for body, found in inner for item in found.rejections]
    return replace(report, segments=tuple(segments), rejections=(*report.rejections, *refused))


class _Naming:
    def __init__(self, body: Body) -> None:
        self._body = body

    def segment(self, segment: SegmentReport) -> SegmentReport:
        return replace(
            segment,
            name=f"{self._body.path}/{segment.name}",
            weights={self._name(name): size for name, size in segment.weights.items()},
            inputs=tuple(map(self._value, segment.inputs)),
            outputs=tuple(map(self._value, segment.outputs)),
            details=tuple(map(self._call, segment.details)),
        )

    def rejection(self, rejection: Rejection) -> Rejection:
        return replace(rejection, node=self._name(rejection.node))

    def _name(self, name: str) -> str:
        return self._body.sources.get(name) or f"{self._body.path}/{name}"

    def _value(self, value: BorderValue) -> BorderValue:
        return replace(value, name=self._name(value.name))

    def _call(self, call: CallReport) -> CallReport:
        return replace(call, name=self._name(call.name), reads=tuple(map(self._name, call.reads)))
