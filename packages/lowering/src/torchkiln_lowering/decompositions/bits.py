"""Bits of int32 and int64 in arithmetic, which engines have: remainders and floor divisions by powers of two, exact for every number.

A number ``x`` of ``n`` bits is its lowest ``n - 1`` bits, a number of 0 or more, minus ``2^(n - 1)`` where ``x < 0``. No step overflows
unless the result is meant to wrap around.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchkiln_core.call import OpCall
from torchkiln_core.rejection import Requires
from torchkiln_lowering.decompositions.accumulate import MAX_COMPARED, at_most, count
from torchkiln_lowering.decompositions.numbers import number_like
from torchkiln_lowering.decompositions.precision import as_dtype
from torchkiln_lowering.decompositions.table import Decomposition

aten = torch.ops.aten
Item = torch.Tensor | int

_WIDTHS = {torch.int32: 32, torch.int64: 64}
"""Integers that engines compute with."""
_SOURCES = frozenset({*_WIDTHS, torch.bool, torch.int8, torch.uint8})
"""What an engine converts to them."""
_MAX_RANK = 7
"""Bits of two tensors lie along one more dimension."""


def both(self: Item, other: Item) -> Any:
    """``bitwise_and``."""
    left, right = _promoted(self, other)
    return _common(left, right)


def either(self: Item, other: Item) -> Any:
    """``bitwise_or``: the one, and what the other has besides."""
    left, right = _promoted(self, other)
    return _plus(right, aten.sub.Tensor(left, _common(left, right)))


def one_of(self: Item, other: Item) -> Any:
    """``bitwise_xor``: what either has besides the other."""
    left, right = _promoted(self, other)
    if isinstance(right, int) and right == -1:
        return aten.bitwise_not.default(left)
    common = _common(left, right)
    rest = aten.rsub.Scalar(common, right) if isinstance(right, int) else aten.sub.Tensor(right, common)
    return aten.add.Tensor(aten.sub.Tensor(left, common), rest)


def shifted_left(self: Item, other: Item) -> Any:
    """``bitwise_left_shift``: 0 for a count outside of the width. Source: ATen/native/cpu/BinaryOpsKernel.cpp, ``lshift_kernel``."""
    value, places, dtype = _operands(self, other)
    width = _WIDTHS[dtype]
    if isinstance(places, int):
        return aten.mul.Scalar(value, _signed(1 << places, dtype)) if 0 <= places < width else aten.full_like.default(value, 0)
    within, factor = _power(places, width)
    return aten.where.self(within, aten.mul.Tensor(_as_tensor(value, places), factor), _as_tensor(0, places))


def shifted_right(self: Item, other: Item) -> Any:
    """``bitwise_right_shift``: -1 or 0, by the sign, for a count outside of the width.

    Source: ATen/native/cpu/BinaryOpsKernel.cpp, ``rshift_kernel``.
    """
    value, places, dtype = _operands(self, other)
    last = _WIDTHS[dtype] - 1
    if isinstance(places, int):
        return aten.floor_divide.Scalar(value, 1 << places) if 0 <= places < last else _sign(value)
    value = _as_tensor(value, places)
    within, divisor = _power(places, last)
    return aten.where.self(within, aten.floor_divide.default(value, divisor), _sign(value))


def _operands(self: Item, other: Item) -> tuple[Any, Any, torch.dtype]:
    """Both as the dtype of the result; numbers are cut to its width, as eager's casts do."""
    dtype = torch.result_type(self, other)
    left, right = (as_dtype(item, dtype) if isinstance(item, torch.Tensor) else _signed(int(item), dtype) for item in (self, other))
    return left, right, dtype


def _promoted(self: Item, other: Item) -> tuple[Any, Any]:
    """Both as the dtype of the result, a tensor first: the order of logic does not matter."""
    left, right, _ = _operands(self, other)
    return (left, right) if isinstance(left, torch.Tensor) else (right, left)


def _signed(number: int, dtype: torch.dtype) -> int:
    """The number of ``dtype`` with the same lowest bits."""
    half = 1 << (_WIDTHS[dtype] - 1)
    return (number + half) % (2 * half) - half


def _as_tensor(item: Item, like: torch.Tensor) -> Any:
    return item if isinstance(item, torch.Tensor) else number_like(item, like)


def _sign(x: torch.Tensor) -> Any:
    """-1 where ``x`` ``[*]`` is negative, else 0."""
    return aten.neg.default(as_dtype(aten.lt.Scalar(x, 0), x.dtype))


def _plus(number: Item, x: torch.Tensor) -> Any:
    return aten.add.Scalar(x, number) if isinstance(number, int) else aten.add.Tensor(x, number)


def _common(x: torch.Tensor, other: Item) -> Any:
    """The bits that ``x`` ``[*]`` has in common with a number or a tensor."""
    if isinstance(other, torch.Tensor):
        return _common_of_tensors(x, other)
    if other == -1:
        return x
    if other < 0:
        return aten.sub.Tensor(x, _common(x, ~other))
    parts = [_run(x, start, stop) for start, stop in _runs(other)]
    total = parts[0] if parts else aten.full_like.default(x, 0)
    for part in parts[1:]:
        total = aten.add.Tensor(total, part)
    return total


def _runs(mask: int) -> Iterator[tuple[int, int]]:
    """The runs of ones of a mask, as the place of the first and that behind the last."""
    start = 0
    while mask >> start:
        start += ((mask >> start) & -(mask >> start)).bit_length() - 1
        stop = start + (~(mask >> start) & ((mask >> start) + 1)).bit_length() - 1
        yield start, stop
        start = stop


def _run(x: torch.Tensor, start: int, stop: int) -> Any:
    """Bits ``start`` to ``stop`` of ``x``, in their places."""
    return aten.sub.Tensor(_lowest(x, stop), _lowest(x, start)) if start else _lowest(x, stop)


def _lowest(x: torch.Tensor, places: int) -> Any:
    """The lowest ``places`` bits of ``x``, a number of 0 or more."""
    if places < _WIDTHS[x.dtype] - 1:
        return aten.remainder.Scalar(x, 1 << places)
    # All but the sign: their number is one that the dtype does not hold, and without the smallest number, which TensorRT subtracts by
    # adding what no longer fits.
    half = 1 << (places - 1)
    highest = aten.remainder.Scalar(aten.floor_divide.Scalar(x, half), 2)
    return aten.add.Tensor(aten.remainder.Scalar(x, half), aten.mul.Scalar(highest, half))


def _common_of_tensors(x: torch.Tensor, other: torch.Tensor) -> Any:
    """``[*], [*] -> [*]``: the product of the bits, laid out along one more dimension ``[*, n - 1]``, and of the signs."""
    places = _powers(_WIDTHS[x.dtype] - 1, x)
    product = aten.mul.Tensor(_bits(x, places), _bits(other, places))
    total = aten.sum.dim_IntList(aten.mul.Tensor(product, places), [-1], False, dtype=x.dtype)
    negative = aten.logical_and.default(aten.lt.Scalar(x, 0), aten.lt.Scalar(other, 0))
    return aten.where.self(negative, aten.add.Scalar(total, torch.iinfo(x.dtype).min), total)


def _bits(x: torch.Tensor, places: torch.Tensor) -> Any:
    return aten.remainder.Scalar(aten.floor_divide.default(aten.unsqueeze.default(x, -1), places), 2)


def _powers(length: int, like: torch.Tensor) -> Any:
    """``2^0, 2^1, ...`` ``[length]``; that of the sign's place is negative. By doubling: powers of integers go through float32."""
    table = aten.full.default([1], 1, dtype=like.dtype, device=like.device)
    known = 1
    while known < length:
        more = aten.mul.Scalar(aten.slice.Tensor(table, 0, 0, min(known, length - known)), 1 << known)
        table = aten.cat.default([table, more])
        known += min(known, length - known)
    return table


def _power(exponent: torch.Tensor, limit: int) -> tuple[Any, Any]:
    """Whether ``0 <= exponent < limit`` ``[*]``, and ``2^exponent`` where that holds, else 1."""
    within = aten.logical_and.default(aten.ge.Scalar(exponent, 0), aten.lt.Scalar(exponent, limit))
    safe = aten.reshape.default(aten.where.self(within, exponent, _as_tensor(0, exponent)), [-1])
    found = aten.index_select.default(_powers(limit, exponent), 0, safe)
    return within, aten.reshape.default(found, list(exponent.shape))


def _operands_of(call: OpCall) -> list[Any]:
    """Two operands: tensors and numbers."""
    items = [call.arguments[name] for name in ("self", "other")]
    return [item.meta["val"] if isinstance(item, torch.fx.Node) else item for item in items]


def _are_known(call: OpCall) -> bool:
    return all(isinstance(value, (torch.Tensor, int)) for value in _operands_of(call))


def _is_truth(call: OpCall) -> bool:
    return bool(call.outputs[0].dtype == torch.bool)


def _are_not_truths(call: OpCall) -> bool:
    return not _is_truth(call)


def _are_integers(call: OpCall) -> bool:
    tensors = [value for value in _operands_of(call) if isinstance(value, torch.Tensor)]
    return call.outputs[0].dtype in _WIDTHS and all(value.dtype in _SOURCES for value in tensors)


def _laid_out(call: OpCall) -> float:
    out = call.outputs[0]
    return count([*out.shape, _WIDTHS[out.dtype]])


_OF_TENSORS = (Requires("results of int32 or int64, of operands of those, of int8, uint8 or bool", _are_integers),)
_KNOWN = Requires("a known number", _are_known)
_OF_NUMBER = (_KNOWN, *_OF_TENSORS)
_SWAPPED = (_KNOWN, Requires("results of bool, int32 or int64", lambda call: _is_truth(call) or _are_integers(call)))
_FITS = (
    *_OF_TENSORS,
    Requires(f"at most {_MAX_RANK} dimensions", lambda call: bool(call.outputs[0].dim() <= _MAX_RANK)),
    at_most(MAX_COMPARED, "bits", _laid_out),
)
"""The bits of two tensors are laid out along one more dimension."""


def _logic(name: str, function: Callable[..., Any]) -> dict[Callable[..., Any], Decomposition]:
    packet = getattr(aten, name)

    def swapped(self: int, other: torch.Tensor) -> Any:
        """A number and a tensor as a tensor and a number."""
        return packet.Scalar(other, self)

    return {
        packet.Tensor: Decomposition(function, _are_not_truths, limits=_FITS),
        packet.Scalar: Decomposition(function, _are_not_truths, limits=_OF_NUMBER),
        packet.Scalar_Tensor: Decomposition(swapped, limits=_SWAPPED),
    }


def _shifts(name: str, operator: str, function: Callable[..., Any]) -> dict[Callable[..., Any], Decomposition]:
    packet, python = getattr(aten, name), getattr(aten, operator)
    of_tensors, of_number = (Decomposition(function, limits=limits) for limits in (_OF_TENSORS, _OF_NUMBER))
    with_number = (packet.Tensor_Scalar, packet.Scalar_Tensor, python.Scalar)
    return {**dict.fromkeys((packet.Tensor, python.Tensor), of_tensors), **dict.fromkeys(with_number, of_number)}


BITS: dict[Callable[..., Any], Decomposition] = {
    **_logic("bitwise_and", both),
    **_logic("bitwise_or", either),
    **_logic("bitwise_xor", one_of),
    **_shifts("bitwise_left_shift", "__lshift__", shifted_left),
    **_shifts("bitwise_right_shift", "__rshift__", shifted_right),
}
