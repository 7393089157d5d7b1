"""The safetensors format, written and read as a stream.

The library writes and reads whole files only: inside a zip that means a second file on disk when saving, a second copy in memory when
loading, and (before its release 0.6) NumPy. Both directions are tested against it.
Source: https://huggingface.co/docs/safetensors, "Format": the header's size as a little-endian u64, a JSON header, then all data
without gaps, from offset 0.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from torchkiln_core import PlanFormatError
from torchkiln_runtime.kiln_file.fields import dump_json, expect, look_up, parse_json, take, take_list

NATIVE: Mapping[torch.dtype, str] = types.MappingProxyType(
    {
        torch.float64: "F64",
        torch.float32: "F32",
        torch.float16: "F16",
        torch.bfloat16: "BF16",
        torch.float8_e4m3fn: "F8_E4M3",
        torch.float8_e5m2: "F8_E5M2",
        torch.int64: "I64",
        torch.int32: "I32",
        torch.int16: "I16",
        torch.int8: "I8",
        torch.uint64: "U64",
        torch.uint32: "U32",
        torch.uint16: "U16",
        torch.uint8: "U8",
        torch.bool: "BOOL",
    }
)
"""Dtypes that every release of the format knows; others are held as bytes."""

_DTYPES: Mapping[str, torch.dtype] = types.MappingProxyType({name: dtype for dtype, name in NATIVE.items()})
_MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""


@dataclass(frozen=True, slots=True)
class Block:
    """A tensor of the file: name, dtype and shape ``[*]`` in its header, and its bytes, uint8 ``[size]`` on any device."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    content: torch.Tensor


def header_of(blocks: Sequence[Block]) -> tuple[bytes, tuple[Block, ...]]:
    """The header, and the blocks in the order in which their bytes follow: larger elements first, so that all stay aligned."""
    ordered = tuple(sorted(blocks, key=lambda block: -block.dtype.itemsize))
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for block in ordered:
        end = offset + block.content.numel()
        entries[block.name] = {"dtype": NATIVE[block.dtype], "shape": list(block.shape), "data_offsets": [offset, end]}
        offset = end
    text = dump_json(entries)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, ordered


def read_header(read: Callable[[int], bytes], size: int) -> Iterator[tuple[str, int]]:
    """Names and sizes in bytes of the blocks, in the order in which their bytes follow.

    Args:
        read: Reads so many bytes of the member.
        size: Bytes of the whole member.

    Raises:
        PlanFormatError: The member is not a safetensors file, or has gaps.
    """
    length = int.from_bytes(read(8), "little") if size >= 8 else size
    if length > min(size - 8, _MAX_HEADER_BYTES):
        raise PlanFormatError(f"tensors: a header of {length} bytes does not fit in {size}")
    header = expect(parse_json(read(length), "header of the tensors"), dict, "header")
    header.pop("__metadata__", None)
    spans = []
    for name, entry in header.items():
        start, end = take_list(entry, "data_offsets", int)
        dtype = look_up(_DTYPES, take(entry, "dtype", str), "dtype")
        shape = take_list(entry, "shape", int)
        if min(shape, default=0) < 0 or end - start != math.prod(shape) * dtype.itemsize:
            raise PlanFormatError(f"tensor {name[:100]}: {end - start} bytes do not hold {dtype} {shape[:20]}")
        spans.append((start, end, name))
    offset = 0
    for start, end, name in sorted(spans):
        if start != offset:
            raise PlanFormatError(f"tensor {name[:100]}: expected it to start at byte {offset}, got {start}")
        offset = end
        yield name, end - start
    if offset != size - 8 - length:
        raise PlanFormatError(f"tensors: expected {size - 8 - length} bytes of data, the header describes {offset}")
