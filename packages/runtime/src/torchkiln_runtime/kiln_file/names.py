"""Names of dtypes, layouts and memory formats in files. A name outside these tables is refused, in both directions."""

from __future__ import annotations

import keyword
import re
import types
from collections.abc import Mapping

import torch

DTYPES: Mapping[str, torch.dtype] = types.MappingProxyType(
    {
        str(dtype).removeprefix("torch."): dtype
        for dtype in (
            torch.float64,
            torch.float32,
            torch.float16,
            torch.bfloat16,
            torch.float8_e4m3fn,
            torch.float8_e4m3fnuz,
            torch.float8_e5m2,
            torch.float8_e5m2fnuz,
            torch.float8_e8m0fnu,
            torch.int64,
            torch.int32,
            torch.int16,
            torch.int8,
            torch.uint64,
            torch.uint32,
            torch.uint16,
            torch.uint8,
            torch.bool,
            torch.complex64,
            torch.complex128,
        )
    }
)
LAYOUTS: Mapping[str, torch.layout] = types.MappingProxyType(
    {
        str(layout).removeprefix("torch."): layout
        for layout in (torch.strided, torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
    }
)
MEMORY_FORMATS: Mapping[str, torch.memory_format] = types.MappingProxyType(
    {
        str(memory_format).removeprefix("torch."): memory_format
        for memory_format in (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)
    }
)


def is_identifier(text: str) -> bool:
    """Whether ``text`` is a plain Python identifier. FX writes names into source code that it runs, so nothing else may enter a graph."""
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text) is not None and not keyword.iskeyword(text)


def is_qualified_name(text: str) -> bool:
    """Whether ``text`` names an attribute of a module or of its submodules, such as ``layers.0.weight``."""
    return re.fullmatch(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*", text) is not None
