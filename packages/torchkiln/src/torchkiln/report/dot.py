"""The report in the language of Graphviz."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from torchkiln.report.table import scaled

if TYPE_CHECKING:
    from torchkiln.report.model import Report, SegmentReport

_COLOURS = {"engine": "#cfe8cf", "torch": "#f6d5b8"}


def to_dot(report: Report) -> str:
    """A box per segment and an arrow per value that crosses a border, with its type."""
    lines = ["digraph partition {", "  node [shape=box, style=filled, fontname=sans]", '  inputs [fillcolor="#dddddd"]']
    makers = dict.fromkeys(report.inputs, "inputs")
    for segment in report.segments:
        lines.append(f'  {_node(segment.name)} [fillcolor="{_COLOURS[segment.kind]}", label={json.dumps(_label(segment))}]')
        for value in segment.inputs:
            maker = makers.get(value.name)
            if maker is not None:
                lines.append(f"  {_node(maker)} -> {_node(segment.name)} [label={json.dumps(value.type)}]")
        makers.update((value.name, segment.name) for value in segment.outputs)
        makers.update((call.name, segment.name) for call in segment.details)
    lines.append('  results [fillcolor="#dddddd"]')
    types = {value.name: value.type for segment in report.segments for value in segment.outputs}
    for name in dict.fromkeys(report.results):
        if name in makers:
            lines.append(f"  {_node(makers[name])} -> results [label={json.dumps(types.get(name, name))}]")
    return "\n".join([*lines, "}"]) + "\n"


def _node(name: str) -> str:
    """The name of a node; a path is no plain word of the language."""
    return json.dumps(name) if "/" in name else name


def _label(segment: SegmentReport) -> str:
    layers = f", {segment.layers} layers" if segment.layers else ""
    flops = "" if segment.flops is None else f"\n{scaled(segment.flops)}FLOPs"
    return f"{segment.name}\n{len(segment.calls)} calls{layers}{flops}"
