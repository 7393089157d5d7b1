"""Which of a call's tensors share memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch._C._dynamo.guards import compute_overlapping_tensors

Item = tuple[str, torch.Tensor, bool]
"""A tensor with its name, and whether it is written to."""


def first_overlap(items: Sequence[Item]) -> tuple[str, str] | None:
    """The names of two tensors with elements in common, one of which is written to; ``None`` where there are none."""
    for near in _neighbours(items):
        for (name, tensor, written), (other_name, other, also_written) in itertools.combinations(near, 2):
            if (written or also_written) and _overlap(tensor, other):
                return name, other_name
    return None


def _neighbours(items: Sequence[Item]) -> list[list[Item]]:
    """Groups whose storages lie in the same memory."""
    spans = sorted((*_span(item[1].untyped_storage()), index) for index, item in enumerate(items))
    groups: list[list[Item]] = []
    end = 0
    for start, stop, index in spans:
        if start >= end:
            groups.append([])
        groups[-1].append(items[index])
        end = max(end, stop)
    return groups


def _span(storage: torch.UntypedStorage) -> tuple[int, int]:
    """First and last address, plus one. Storages of fake tensors have none, and are told apart by their own."""
    if storage.device.type == "meta":
        return storage._cdata, storage._cdata + 1
    start = storage.data_ptr()
    return start, start + storage.nbytes()


def _overlap(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have elements in common, or may have: torch knows that only of one storage."""
    if tensor.untyped_storage()._cdata == other.untyped_storage()._cdata:
        return bool(compute_overlapping_tensors([tensor, other], symbolic=False))
    (start, stop), (other_start, other_stop) = _extent(tensor), _extent(other)
    return max(start, other_start) < min(stop, other_stop)


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Address of the first element, and behind the last one."""
    start = tensor.data_ptr()
    if tensor.numel() == 0:
        return start, start
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.itemsize
