"""Casts, copies and other operators that keep the values."""

from __future__ import annotations

import torch

from torchkiln_converters.arrival import Result
from torchkiln_converters.converter import converter
from torchkiln_converters.support import BYTES, NETWORK_DTYPES, Support
from torchkiln_converters.writing.narrow import narrowed, widened
from torchkiln_converters.writing.shapes import expand
from torchkiln_converters.writing.values import cast
from torchkiln_core import Network, Value

aten = torch.ops.aten


@converter(aten._to_copy.default, Support(dtypes=NETWORK_DTYPES | BYTES, results=NETWORK_DTYPES | BYTES, ignores=("dtype",)))
def to_copy(net: Network, self: Value, result: Result) -> Value:
    """``_to_copy(Tensor self, *, ScalarType? dtype=None, ...)``. Numbers to bool test for non-zero; integers to one byte keep the last."""
    if self.dtype is result.dtype:
        return self
    if result.dtype in BYTES:
        return narrowed(net, self, result.dtype)
    if self.dtype not in BYTES:
        return cast(net, self, result.dtype)
    return cast(net, widened(net, self, torch.int32), torch.bool) if result.dtype is torch.bool else widened(net, self, result.dtype)


@converter(
    (aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default, aten.lift_fresh.default),
    Support(dtypes=NETWORK_DTYPES | {torch.int8}, results=NETWORK_DTYPES | {torch.int8}),
)
def copy_of(net: Network, self: Value) -> Value:
    """``clone(Tensor self, *, MemoryFormat? memory_format=None)`` and its like: the value itself, since values never change."""
    return self


@converter(aten.copy.default)
def copy(net: Network, self: Value, src: Value, result: Result) -> Value:
    """``copy(Tensor self, Tensor src, bool non_blocking=False)``: ``src`` with dtype and shape of ``self``."""
    return expand(net, cast(net, src, result.dtype), result.shape)
