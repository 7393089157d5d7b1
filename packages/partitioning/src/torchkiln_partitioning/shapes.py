"""Shape facts of a segment: the range of every dimension that crosses its border inwards."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from torchkiln_core.errors import PartitionError
from torchkiln_core.inference import range_of
from torchkiln_core.partition import Segment
from torchkiln_core.size import Size, sizes_of, symbols_of
from torchkiln_core.spec import Dim, DimRange, TensorSpec


def input_specs(segment: Segment, dims: Mapping[str, DimRange]) -> tuple[TensorSpec, ...]:
    """The specs of a segment's tensor inputs, in order; numbers that a PyTorch segment takes are left out.

    A dimension that is an expression has the bounds of the expression over the ranges of its symbols, so the range holds every size
    that can occur and possibly more.

    Args:
        segment: A segment of a partition.
        dims: Range of each free symbol, as in ``Program.dims``.

    Raises:
        PartitionError: A size has no range.
    """
    wanted = set(segment.inputs)
    specs: list[TensorSpec] = []
    for node in segment.module.graph.find_nodes(op="placeholder"):
        value = node.meta["val"]
        if node.name in wanted and isinstance(value, torch.Tensor):
            shape = tuple(_require_range(size, dims, node.name) for size in sizes_of(value.shape))
            specs.append(TensorSpec(node.name, value.dtype, shape))
    return tuple(specs)


def _require_range(size: Size, dims: Mapping[str, DimRange], name: str) -> Dim:
    dim = dim_of(size, dims)
    if dim is None:
        known = ", ".join(f"{symbol} from {bounds.min} to {bounds.max}" for symbol, bounds in dims.items()) or "none"
        raise PartitionError(f"input {name}: expected a size with bounds, got {size} (known ranges: {known})")
    return dim


def unranged_symbols(sizes: tuple[Size, ...], dims: Mapping[str, DimRange]) -> tuple[str, ...]:
    """The symbols of sizes that have no known range, in order."""
    return tuple(dict.fromkeys(name for size in sizes for name in symbols_of(size) if name not in dims))


def dim_of(size: Size, dims: Mapping[str, DimRange]) -> Dim | None:
    """A size with its range; ``None`` where a symbol has none, or where it divides by what may be 0."""
    if isinstance(size, int):
        return size
    return None if unranged_symbols((size,), dims) else range_of(size, dims)
