"""Comparison of the fake tensors of two nodes, without guarding on symbolic sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import statically_known_true

TRACED = "torchkiln_traced"
"""Key of ``Node.meta`` that holds the value of a call as it was traced; where that is its ``val``, it needs no second computation."""
KEPT = "torchkiln_kept"
"""Key of ``Node.meta`` that says, of a call that the oracle refuses, why the best of its decompositions did not stand for it."""


def fake_mode_of(graph: torch.fx.Graph) -> FakeTensorMode | None:
    """The fake mode of a graph's values, or ``None`` when it computes no tensor."""
    for node in graph.nodes:
        value = node.meta.get("val")
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, FakeTensor):
                return item.fake_mode
    return None


def known_equal(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether two shapes ``[*]`` are equal for every size that the symbols may take; undecided counts as no."""
    return len(left) == len(right) and all(statically_known_true(a == b) for a, b in zip(left, right, strict=True))


def known_and_not_empty(sizes: Sequence[Any]) -> bool:
    """Whether sizes ``[*]`` are integers, none of them 0."""
    return all(isinstance(size, int) and size > 0 for size in sizes)


def same_kind(left: Any, right: Any) -> bool:
    """Whether two values agree in dtype, device and shape ``[*]`` (strides may differ), or are equal symbolic integers."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return (
            left.dtype == right.dtype
            and left.device == right.device
            and left.layout == right.layout
            and left.is_sparse == right.is_sparse
            and known_equal(left.shape, right.shape)
        )
    if isinstance(left, (tuple, list)) and isinstance(right, (tuple, list)):
        return len(left) == len(right) and all(same_kind(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, torch.SymBool) or isinstance(right, torch.SymBool):
        return isinstance(left, (bool, torch.SymBool)) and isinstance(right, (bool, torch.SymBool))
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor) or left is None or right is None:
        return left is None and right is None
    return bool(statically_known_true(left == right))


def same_strides(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two strided tensors of equal shape ``[*]`` walk memory alike; strides of dimensions of size 1 do not matter."""
    if left.layout != torch.strided or right.layout != torch.strided:
        return left.layout == right.layout
    return all(
        statically_known_true(size == 1) or statically_known_true(a == b)
        for size, a, b in zip(left.shape, left.stride(), right.stride(), strict=True)
    )


def is_contiguous(tensor: torch.Tensor) -> bool:
    """Whether a tensor ``[*]`` lies row by row in memory, for every size that the symbols may take; undecided counts as no."""
    expected: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if not (statically_known_true(size == 1) or statically_known_true(stride == expected)):
            return False
        expected = expected * size
    return True


def same_layout(left: Any, right: Any) -> bool:
    """Whether two values agree in everything but their storage: ``same_kind`` and, for tensors, strides and lazy bits."""
    if not same_kind(left, right):
        return False
    if isinstance(left, torch.Tensor):
        return same_strides(left, right) and left.is_conj() == right.is_conj() and left.is_neg() == right.is_neg()
    if isinstance(left, (tuple, list)):
        return all(same_layout(a, b) for a, b in zip(left, right, strict=True))
    return True


def describe(value: Any) -> str:
    """Short text of a value: dtype, shape and device of a tensor."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(str(size) for size in value.shape)}] on {value.device}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(describe(item) for item in value)})"
    return str(value)
