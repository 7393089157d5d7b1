"""From a partition to its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.fx

from torchkiln.report.model import BorderValue, CallReport, Report, SegmentReport, SizeReport
from torchkiln_core import Partition, Program
from torchkiln_core.call import source_of
from torchkiln_core.rejection import target_name
from torchkiln_core.size import format_size, sizes_of, symbols_of
from torchkiln_core.spec import DimRange
from torchkiln_partitioning import BorderTensor, SegmentDescription, describe, is_operator, module_stack


def describe_partition(
    partition: Partition,
    engine: str,
    stage_ms: Mapping[str, float],
    made: Callable[[str], Mapping[str, Any]],
) -> Report:
    """The report of a partition.

    Args:
        partition: The divided program.
        engine: What runs its engine segments, or ``"not built"``.
        stage_ms: Time of each stage.
        made: What is known of the network and plans of an engine segment, as fields of ``SegmentReport``.
    """
    weights = partition.program.weights
    sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in weights.items()}
    sources: dict[str, tuple[str, ...]] = {}
    segments = tuple(
        _segment_report(found, sizes, sources, made(found.segment.name) if found.segment.kind == "engine" else {})
        for found in describe(partition)
    )
    output = next(iter(partition.module.graph.find_nodes(op="output")))
    results = tuple(dict.fromkeys(name for node in output.all_input_nodes for name in sources.get(node.name, (node.name,))))
    return Report(
        segments,
        partition.rejections,
        engine,
        dict(stage_ms),
        inputs=partition.program.user_inputs,
        results=results,
        sizes=_sizes(partition.program),
    )


def _sizes(program: Program) -> tuple[SizeReport, ...]:
    """The ranges of the symbols in the shapes of the inputs."""
    places: dict[str, list[str]] = {}
    for node in program.module.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for dim, size in enumerate(sizes_of(value.shape) if isinstance(value, torch.Tensor) else ()):
            for symbol in symbols_of(size):
                written = format_size(size)
                places.setdefault(symbol, []).append(f"{node.name} dimension {dim}" + (f" is {written}" if written != symbol else ""))
    return tuple(
        SizeReport(symbol, tuple(places.get(symbol, ())), bounds.min, bounds.opt, bounds.max, bounds.assumed)
        for symbol, bounds in program.dims.items()
    )


def _segment_report(
    found: SegmentDescription, sizes: Mapping[str, int], sources: dict[str, tuple[str, ...]], made: Mapping[str, Any]
) -> SegmentReport:
    segment = found.segment
    return SegmentReport(
        segment.name,
        segment.kind,
        segment.calls,
        flops=found.work.flops,
        weights={name: sizes[name] for name in segment.weights},
        inputs=tuple(map(_border_value, found.inputs)),
        outputs=tuple(map(_border_value, found.outputs)),
        details=_details(found, sources),
        **made,
    )


def _details(found: SegmentDescription, sources: dict[str, tuple[str, ...]]) -> tuple[CallReport, ...]:
    """The calls of a segment; ``sources`` holds the calls that each value of earlier segments comes from, and takes those of this one."""
    details: list[CallReport] = []
    for node in found.segment.module.graph.nodes:
        if node.op == "placeholder":
            sources.setdefault(node.name, (node.name,) if node.name in found.segment.inputs else ())
        elif node.op == "call_function":
            reads = tuple(dict.fromkeys(name for other in node.all_input_nodes for name in sources.get(other.name, ())))
            # Parts of results and sizes are no calls: who reads them reads what they come from.
            sources[node.name] = (node.name,) if is_operator(node) else reads
            if is_operator(node):
                target = target_name(node.target)
                stack = module_stack(node)
                module = stack[-1][0] if stack else ""
                details.append(CallReport(node.name, target, module, _type(node), reads, found.flops[node.name], source_of(node)))
    return tuple(details)


def _type(node: torch.fx.Node) -> str:
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else (value,)
    return ", ".join(_type_of(item) for item in values)


def _type_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"
    return type(value).__name__


def _border_value(value: BorderTensor) -> BorderValue:
    shape = ", ".join(map(format_size, value.sizes))
    ranges = [dim for dim in value.dims if isinstance(dim, DimRange)]
    profile = {dim.symbol: (dim.min, dim.opt, dim.max) for dim in ranges}
    dtype = str(value.dtype).removeprefix("torch.")
    return BorderValue(value.name, f"{dtype}[{shape}]", profile, value.num_bytes, value.data_dependent)
