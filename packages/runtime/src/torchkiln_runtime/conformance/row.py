"""A row of the conformance table: one layer, one case, one dtype."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from torchkiln_core import DimRange, Layer, Network, Value

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int32, torch.int64)
NUMBERS = (*FLOATS, *INTEGERS)
ALL = (*NUMBERS, torch.bool)

SIZES: Mapping[str, DimRange] = {"n": DimRange("n", 1, 3, 7), "m": DimRange("m", 1, 4, 6), "k": DimRange("k", 1, 5, 9)}
"""The sizes that stand in the shapes of rows: their ``opt`` where shapes are static, symbols with these ranges where they are dynamic."""

Shape: TypeAlias = tuple[int | str, ...]
Fill: TypeAlias = Callable[[tuple[int, ...], torch.dtype, torch.Generator], torch.Tensor]
Writer: TypeAlias = Callable[..., Value | tuple[Value, ...]]


@dataclass(frozen=True, slots=True)
class Operand:
    """An input of a row: its shape ``[*]`` with names of ``SIZES``, its dtype, and what it holds."""

    shape: Shape
    dtype: torch.dtype
    fill: Fill

    def sized(self, sizes: Mapping[str, Any]) -> tuple[Any, ...]:
        """The shape with the names replaced."""
        return tuple(sizes[size] if isinstance(size, str) else size for size in self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One layer on given values.

    Attributes:
        layer: Kind of the layer.
        case: What is special, such as ``EXP`` or ``axis 0``.
        dtype: The dtype that the row is about.
        operands: Inputs.
        write: Writes the layer: ``write(net, *values)`` returns what is compared.
        exact: Whether results must be equal bit by bit (but for the bits of a NaN).
        relaxed: Factor on the tolerance where results need not be exact.
        absolute: What results may be off by whatever their size, in epsilons of the dtype, because intermediate results are rounded.
    """

    layer: str
    case: str
    dtype: torch.dtype
    operands: tuple[Operand, ...]
    write: Writer
    exact: bool = False
    relaxed: float = 1.0
    absolute: float = 0.0

    @property
    def name(self) -> str:
        """Such as ``Unary/EXP/float16``."""
        return f"{self.layer}/{self.case}/{str(self.dtype).removeprefix('torch.')}"

    @property
    def has_sizes(self) -> bool:
        """Whether the row can run with dynamic shapes."""
        return any(isinstance(size, str) for operand in self.operands for size in operand.shape)

    def values(self, sizes: Mapping[str, int]) -> list[torch.Tensor]:
        """Tensors for the operands, the same in every process."""
        generator = torch.Generator().manual_seed(zlib.crc32(self.name.encode()))
        return [operand.fill(operand.sized(sizes), operand.dtype, generator) for operand in self.operands]


def apply(layer: Layer) -> Writer:
    """A writer that applies ``layer`` to the operands."""

    def write(net: Network, *values: Value) -> tuple[Value, ...]:
        return net.add_many(layer, *values)

    return write
