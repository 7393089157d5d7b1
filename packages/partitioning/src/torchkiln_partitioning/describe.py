"""What the segments of a partition do and what crosses their borders, read from their graphs without running the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.fx
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from torchkiln_core.partition import Partition, Segment
from torchkiln_core.size import Size
from torchkiln_core.spec import Dim, DimRange
from torchkiln_partitioning.cost import Content, SegmentWork, measure
from torchkiln_partitioning.shapes import dim_of
from torchkiln_partitioning.view import CHECKS, SIZE_READERS, dims_of, is_tensor
from torchkiln_partitioning.work import WorkEstimator


@dataclass(frozen=True, slots=True)
class BorderTensor:
    """A tensor that crosses a border.

    Attributes:
        name: The program value.
        dtype: Its dtype.
        sizes: Its shape ``[*]``, as expressions over the symbols of the program.
        dims: The same with the range of each dimension, ``None`` where it has none.
        num_bytes: Bytes at the sizes that the program is tuned for.
    """

    name: str
    dtype: torch.dtype
    sizes: tuple[Size, ...]
    dims: tuple[Dim | None, ...]
    num_bytes: int

    @property
    def data_dependent(self) -> bool:
        """Whether a size is known only once the program has run up to here."""
        return None in self.dims or any(not isinstance(size, int) and free_unbacked_symbols(size) for size in self.sizes)


@dataclass(frozen=True, slots=True)
class SegmentDescription:
    """A segment with its work, the operations of each of its calls by node name, and the tensors at its border."""

    segment: Segment
    work: SegmentWork
    flops: Mapping[str, int]
    inputs: tuple[BorderTensor, ...]
    outputs: tuple[BorderTensor, ...]


def describe(partition: Partition) -> tuple[SegmentDescription, ...]:
    """A description of every segment, in call order."""
    estimator = WorkEstimator(partition.program.dims)
    return tuple(_describe(segment, partition.program.dims, estimator) for segment in partition.segments)


def is_operator(node: torch.fx.Node) -> bool:
    """Whether a node of a segment is a call as users see it: no part of a result, no size, no check."""
    return isinstance(node.target, (OpOverload, HigherOrderOperator)) and node.target not in SIZE_READERS and node.target not in CHECKS


def _describe(segment: Segment, dims: Mapping[str, DimRange], estimator: WorkEstimator) -> SegmentDescription:
    placeholders = {node.name: node for node in segment.module.graph.find_nodes(op="placeholder")}
    calls = [node for node in segment.module.graph.nodes if node.op == "call_function" and is_operator(node)]
    inputs = [placeholders[name] for name in segment.inputs if is_tensor(placeholders[name])]
    outputs = [node for node in next(iter(segment.module.graph.find_nodes(op="output"))).all_input_nodes if is_tensor(node)]
    weights = [placeholders[name] for name in segment.weights]
    work = measure(Content(calls, len(calls), inputs, outputs, weights), estimator)
    flops = {node.name: estimator.flops_of(node) for node in calls}
    borders = [tuple(_border(node, dims, estimator) for node in nodes) for nodes in (inputs, outputs)]
    return SegmentDescription(segment, work, flops, *borders)


def _border(node: torch.fx.Node, dims: Mapping[str, DimRange], estimator: WorkEstimator) -> BorderTensor:
    sizes = dims_of(node)
    ranges = tuple(dim_of(size, dims) for size in sizes)
    return BorderTensor(node.name, node.meta["val"].dtype, sizes, ranges, estimator.bytes_of(node))
