"""The order of dimensions in memory: engines give contiguous tensors, eager may not."""

from __future__ import annotations

import torch

from torchkiln.ranges import example_sizes
from torchkiln_core import Segment
from torchkiln_core.size import evaluate, size_of

Layout = tuple[int, ...] | None
"""Dimensions from the outermost in memory to the innermost; ``None`` for contiguous."""


def layouts_of(segment: Segment) -> tuple[Layout, ...]:
    """The layout that eager gives each output of a segment."""
    output = next(node for node in reversed(segment.module.graph.nodes) if node.op == "output")
    return tuple(_layout(node.meta["val"]) for node in output.args[0])


def inverse_of(order: tuple[int, ...]) -> tuple[int, ...]:
    """Where each dimension stands in ``order``."""
    return tuple(order.index(dim) for dim in range(len(order)))


def arrange(tensor: torch.Tensor, order: tuple[int, ...], inverse: tuple[int, ...]) -> torch.Tensor:
    """A copy of ``tensor`` ``[*]`` whose dimensions lie in memory in ``order``, of which the inverse is given."""
    return tensor.permute(order).contiguous().permute(inverse)


def _layout(fake: torch.Tensor) -> Layout:
    strides = [_hint(stride) for stride in fake.stride()]
    sizes = [_hint(size) for size in fake.shape]
    # Dimensions of size 1 and expanded ones have no place in memory of their own.
    if 0 in sizes or any(stride == 0 and size != 1 for stride, size in zip(strides, sizes, strict=True)):
        return None
    order = tuple(sorted(range(len(strides)), key=lambda dim: (-strides[dim], dim)))
    moved = [dim for dim in order if sizes[dim] != 1]
    return None if moved == sorted(moved) else order


def _hint(size: int | torch.SymInt) -> int:
    """The example value of a size, with 2 for what depends on data; layouts do not depend on it beyond 0 and 1."""
    if not isinstance(size, torch.SymInt):
        return size
    env, expression = size.node.shape_env, size.node.expr
    examples = {} if env is None else example_sizes(env)
    return evaluate(size_of(size), {symbol.name: int(examples.get(symbol, 2)) for symbol in expression.free_symbols})
