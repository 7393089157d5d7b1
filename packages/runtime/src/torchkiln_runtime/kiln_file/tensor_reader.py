"""Tensors from the blocks of a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torchkiln_core import PlanFormatError
from torchkiln_runtime.kiln_file.archive_reader import MemberReader
from torchkiln_runtime.kiln_file.fields import look_up, take, take_list
from torchkiln_runtime.kiln_file.names import DTYPES
from torchkiln_runtime.kiln_file.safetensors_format import read_header
from torchkiln_runtime.kiln_file.tensor_table import span_bytes


def read_blocks(member: MemberReader) -> dict[str, torch.Tensor]:
    """The bytes of every block, uint8 ``[size]`` on the host, each in memory of its own.

    They are read, not mapped: a mapped file that somebody overwrites changes the weights, or ends the process, long after the check.
    """
    blocks: dict[str, torch.Tensor] = {}
    for name, size in read_header(member.read, member.size):
        blocks[name] = member.read_tensor(size)
    return blocks


class TensorReader:
    """The tensors of a file by name. Tensors that shared memory when they were saved share it again.

    Args:
        records: What ``TensorTable.layout`` described.
        blocks: The bytes of every block.
    """

    def __init__(self, records: Mapping[str, Any], blocks: Mapping[str, torch.Tensor]) -> None:
        self._records = records
        self._blocks = blocks
        self._copies: dict[tuple[str, torch.device], torch.Tensor] = {}
        self._tensors: dict[tuple[Any, ...], torch.Tensor] = {}

    def at(self, place: Any) -> torch.Tensor:
        """The tensor that a place refers to, on the device that it was saved from; on the host where that device is missing.

        Raises:
            PlanFormatError: There is no such tensor, or its record is wrong.
        """
        return self._tensor(take(place, "tensor", str), _reachable(torch.device(take(place, "device", str))))

    def on_host(self, place: Any) -> torch.Tensor:
        """The tensor that a place refers to, on the host."""
        return self._tensor(take(place, "tensor", str), torch.device("cpu"))

    def _tensor(self, name: str, device: torch.device) -> torch.Tensor:
        if name not in self._records:
            raise PlanFormatError(f"tensor {name[:100]!r}: missing")
        record = self._records[name]
        block, offset = take(record, "block", str), take(record, "offset", int)
        dtype = look_up(DTYPES, take(record, "dtype", str), "dtype")
        shape, stride = tuple(take_list(record, "shape", int)), tuple(take_list(record, "stride", int))
        if block not in self._blocks or len(shape) != len(stride) or min((0, offset, *shape, *stride)) < 0 or offset % dtype.itemsize:
            raise PlanFormatError(f"tensor {name[:100]!r}: no such view")
        if offset + span_bytes(shape, stride, dtype.itemsize) > self._blocks[block].numel():
            raise PlanFormatError(f"tensor {name[:100]!r}: reaches beyond its block")
        identity = (block, offset, dtype, shape, stride, device)
        if identity not in self._tensors:
            storage = self._block(block, device).untyped_storage()
            view = torch.empty(0, dtype=dtype, device=device).set_(storage, offset // dtype.itemsize, shape, stride)
            self._tensors[identity] = view
        return self._tensors[identity]

    def _block(self, name: str, device: torch.device) -> torch.Tensor:
        if (name, device) not in self._copies:
            self._copies[name, device] = self._blocks[name].to(device)
        return self._copies[name, device]


def _reachable(device: torch.device) -> torch.device:
    if device.type == "cuda" and torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count():
        return device
    return torch.device("cpu")
