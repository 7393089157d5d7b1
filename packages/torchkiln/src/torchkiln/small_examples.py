"""Example arguments of sizes 0 and 1, for another export of a model that was exported for all sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.export import Dim, ExportedProgram, ShapesCollection
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from torchkiln.ranges import ranges_of
from torchkiln.size_guards import SMALLEST_TRACED
from torchkiln_core import DimRange, ExportError, Size
from torchkiln_core.size import evaluate, linear, sizes_of, symbols_of


def small_examples(
    program: ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any], small: Mapping[str, int]
) -> tuple[tuple[Any, ...], dict[str, Any], ShapesCollection | None]:
    """The examples cut to small sizes, and the dynamic shapes of the sizes that remain.

    Args:
        program: The export for all sizes.
        args: Its positional arguments.
        kwargs: Its arguments by name.
        small: The small sizes, by symbol.

    Raises:
        ExportError: A size that is an argument itself, that two symbols make up, or that is larger for smaller ones.
    """
    leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
    values = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
    inputs = [item for item in program.graph_signature.input_specs if item.kind is InputKind.USER_INPUT]
    if len(inputs) != len(leaves) or spec != program.call_spec.in_spec:
        raise ExportError("the examples are not in the order of the program's inputs")
    ranges = ranges_of(program.graph_module, program.range_constraints)
    dims: dict[str, Any] = {name: _dim(bounds) for name, bounds in ranges.items() if name not in small and bounds.max >= SMALLEST_TRACED}
    shapes = ShapesCollection()  # type: ignore[no-untyped-call]
    is_dynamic = False
    for index, (leaf, item) in enumerate(zip(leaves, inputs, strict=True)):
        value = values.get(getattr(item.arg, "name", ""))
        if isinstance(value, torch.SymInt):
            raise ExportError(f"argument {item.arg.name}: a size that is an argument itself is not made small")
        if not isinstance(leaf, torch.Tensor) or not isinstance(value, torch.Tensor):
            continue
        leaves[index], found = _cut(leaf, sizes_of(value.shape), small, dims)
        if found:
            shapes[leaves[index]] = found
            is_dynamic = True
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    return args, dict(kwargs), shapes if is_dynamic else None


def _dim(bounds: DimRange) -> Any:
    return Dim(bounds.symbol, min=max(bounds.min, SMALLEST_TRACED), max=bounds.max)


def _cut(
    leaf: torch.Tensor, shape: tuple[Size, ...], small: Mapping[str, int], dims: Mapping[str, Any]
) -> tuple[torch.Tensor, dict[int, Any]]:
    """A tensor of its own with the small sizes, and its dimensions that stay dynamic."""
    cut, found = leaf.detach(), {}
    for index, size in enumerate(shape):
        names = set(symbols_of(size))
        if names and names <= small.keys():
            length = evaluate(size, small)
            if not 0 <= length <= cut.shape[index]:
                raise ExportError(f"size {size}: expected one that is smaller for smaller symbols")
            cut = cut.narrow(index, 0, length)
        elif names:
            if (line := linear(size)) is None or names & small.keys():
                raise ExportError(f"size {size}: expected a symbol, or a multiple of one")
            factor, offset, name = line
            dim = dims[name] if factor == 1 else factor * dims[name]
            found[index] = dim if offset == 0 else dim + offset
    return cut.clone().requires_grad_(leaf.requires_grad), found
