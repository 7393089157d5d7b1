"""Which bytes to write for a set of tensors: each stretch of memory once, and every tensor as a view of one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from torchkiln_core import PlanError
from torchkiln_core.record import dtype_name
from torchkiln_runtime.kiln_file.names import DTYPES
from torchkiln_runtime.kiln_file.safetensors_format import NATIVE, Block
from torchkiln_runtime.kiln_file.tensor_bytes import storage_bytes

_ALIGNMENT = 16
"""Size of the largest element, complex128: a block that starts on it within its storage keeps every view aligned."""


@dataclass(frozen=True, slots=True)
class _View:
    """A tensor and the bytes ``start`` to ``stop`` of its storage that it can touch."""

    name: str
    tensor: torch.Tensor
    start: int
    stop: int

    @property
    def identity(self) -> tuple[Any, ...]:
        tensor = self.tensor
        return self.start, self.stop, tuple(tensor.shape), tensor.stride(), tensor.dtype


@dataclass(slots=True)
class TensorTable:
    """Tensors to be saved. They are held by reference, and copied to the host one block at a time while a file is written."""

    _views: list[_View] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)

    def add(self, name: str, tensor: torch.Tensor) -> dict[str, str]:
        """Adds a tensor of shape ``[*]`` under a new name and returns the record that stands for it.

        Raises:
            PlanError: The tensor is not a plain, strided tensor with data on the host or a CUDA device.
        """
        if name in self._names:
            raise PlanError(f"tensor {name}: saved twice under one name")
        _check(name, tensor)
        plain = tensor.detach().resolve_conj().resolve_neg()
        start = int(plain.storage_offset()) * plain.element_size()
        span = span_bytes(tuple(plain.shape), plain.stride(), plain.element_size())
        self._names.add(name)
        self._views.append(_View(name, plain, start, start + span))
        return {"tensor": name, "device": str(tensor.device)}

    def layout(self) -> tuple[dict[str, Any], tuple[Block, ...]]:
        """The record of every tensor, by name, and the blocks that they are views of."""
        records: dict[str, Any] = {}
        blocks: list[Block] = []
        order = {view.name: index for index, view in enumerate(self._views)}
        # In the order of adding, not of addresses: equal programs are equal files, and a block has the name that came first.
        groups = [sorted(group, key=lambda view: order[view.name]) for group in self._groups()]
        for group in sorted(groups, key=lambda group: order[group[0].name]):
            first = group[0]
            shared = len({view.identity for view in group}) > 1 or not first.tensor.is_contiguous() or first.tensor.dtype not in NATIVE
            start = min(view.start for view in group)
            start = start // _ALIGNMENT * _ALIGNMENT if shared else start
            stop = max(view.stop for view in group)
            dtype, shape = (torch.uint8, (stop - start,)) if shared else (first.tensor.dtype, tuple(first.tensor.shape))
            content = storage_bytes(first.tensor, start, stop) if stop > start else torch.empty(0, dtype=torch.uint8)
            blocks.append(Block(first.name, dtype, shape, content))
            for view in group:
                records[view.name] = {
                    "block": first.name,
                    "offset": view.start - start,
                    "dtype": dtype_name(view.tensor.dtype),
                    "shape": list(view.tensor.shape),
                    "stride": list(view.tensor.stride()),
                }
        return records, tuple(blocks)

    def _groups(self) -> Iterator[list[_View]]:
        """Views whose bytes overlap, together; tensors without elements each alone."""

        def place(view: _View) -> tuple[str, int, int, int]:
            return str(view.tensor.device), view.tensor.untyped_storage().data_ptr(), view.start, -view.stop

        filled = [view for view in self._views if view.tensor.numel()]
        yield from ([view] for view in self._views if not view.tensor.numel())
        for _, in_storage in itertools.groupby(sorted(filled, key=place), key=lambda view: place(view)[:2]):
            group: list[_View] = []
            stop = 0
            for view in in_storage:
                if group and view.start >= stop:
                    yield group
                    group = []
                group.append(view)
                stop = max(stop, view.stop)
            yield group


def _check(name: str, tensor: torch.Tensor) -> None:
    kind = type(tensor)
    if kind not in (torch.Tensor, torch.nn.Parameter) or torch._is_functional_tensor(tensor):
        raise PlanError(f"tensor {name}: expected a plain torch.Tensor, got {kind.__name__}", fix="save the tensors that it is made of")
    if tensor.layout is not torch.strided or tensor.dtype not in DTYPES.values() or tensor.device.type not in ("cpu", "cuda"):
        found = f"{tensor.dtype}, {tensor.layout} on {tensor.device}"
        raise PlanError(f"tensor {name}: expected a strided tensor of a supported dtype on cpu or cuda, got {found}")


def span_bytes(shape: tuple[int, ...], stride: tuple[int, ...], item_bytes: int) -> int:
    """Bytes from the first to the last element of a view ``[*]``."""
    if math.prod(shape) == 0:
        return 0
    return (sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) + 1) * item_bytes
