"""How an argument of an ATen call arrives in a converter: read off the parameter's annotation once, at import."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import sympy
import torch
import torch.fx

from torchkiln_core import Size, Value
from torchkiln_core.size import size_of

Scalar: TypeAlias = int | float | bool
"""A Python number known when the engine is built."""
Operand: TypeAlias = Value | Scalar | Size
"""A tensor, or the number that stands in its place: captured graphs hold ``aten.mul.Tensor(x, 2)``."""


@dataclass(frozen=True, slots=True)
class Result:
    """Dtype and shape ``[*]`` that the call must return, from the node's fake tensor."""

    dtype: torch.dtype
    shape: tuple[Size, ...]


class Arrival(enum.Enum):
    """Kinds of arrival."""

    VALUE = "value"
    VALUES = "values"
    OPTIONAL_VALUES = "optional values"
    OPERAND = "operand"
    SIZE = "size"
    SIZES = "sizes"
    SCALAR = "scalar"
    INT = "int"
    FLOAT = "float"
    BOOL = "bool"
    INTS = "ints"
    STR = "str"
    DTYPE = "dtype"


_FITS: dict[Arrival, frozenset[str]] = {
    Arrival.VALUE: frozenset({"Tensor"}),
    Arrival.VALUES: frozenset({"List[Tensor]"}),
    Arrival.OPTIONAL_VALUES: frozenset({"List[Optional[Tensor]]"}),
    Arrival.OPERAND: frozenset({"Tensor", "number"}),
    Arrival.SIZE: frozenset({"int", "SymInt", "number"}),
    Arrival.SIZES: frozenset({"List[int]", "List[SymInt]"}),
    Arrival.SCALAR: frozenset({"number"}),
    Arrival.INT: frozenset({"int", "SymInt"}),
    Arrival.FLOAT: frozenset({"float", "number"}),
    Arrival.BOOL: frozenset({"bool"}),
    Arrival.INTS: frozenset({"List[int]", "List[SymInt]"}),
    Arrival.STR: frozenset({"str"}),
    Arrival.DTYPE: frozenset({"ScalarType"}),
}
"""The schema types that arrive so."""

_HINTS: dict[frozenset[Any], Arrival] = {
    frozenset({Value}): Arrival.VALUE,
    frozenset({Sequence[Value]}): Arrival.VALUES,
    frozenset({Sequence[Value | None]}): Arrival.OPTIONAL_VALUES,
    frozenset({Value, int, float, bool, sympy.Expr}): Arrival.OPERAND,
    frozenset({int, sympy.Expr}): Arrival.SIZE,
    frozenset({tuple[Size, ...]}): Arrival.SIZES,
    frozenset({int, float, bool}): Arrival.SCALAR,
    frozenset({int}): Arrival.INT,
    frozenset({float}): Arrival.FLOAT,
    frozenset({bool}): Arrival.BOOL,
    frozenset({tuple[int, ...]}): Arrival.INTS,
    frozenset({str}): Arrival.STR,
    frozenset({torch.dtype}): Arrival.DTYPE,
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a converter."""

    name: str
    arrival: Arrival
    optional: bool

    def fits(self, kinds: Iterable[str]) -> bool:
        """Whether an argument of one of these schema types arrives so."""
        return not _FITS[self.arrival].isdisjoint(kinds)


def parameter(name: str, hint: Any) -> Parameter:
    """Reads an annotation.

    Raises:
        TypeError: The annotation says nothing about arrival.
    """
    members = frozenset(typing.get_args(hint)) if typing.get_origin(hint) in (typing.Union, types.UnionType) else frozenset({hint})
    optional = type(None) in members
    arrival = _HINTS.get(members - {type(None)})
    if arrival is None:
        raise TypeError(f"{name}: no argument arrives as {hint}")
    return Parameter(name, arrival, optional)


class NotStatic(Exception):
    """An argument that a converter needs when the engine is built is only known when it runs."""


Lookup: TypeAlias = Callable[[torch.fx.Node], Value]


def read(item: Parameter, raw: Any, lookup: Lookup) -> Any:
    """The Python value that a converter gets for the argument ``raw`` of a node.

    Raises:
        NotStatic: A static argument is symbolic.
    """
    if raw is None:
        if item.optional:
            return None
        raise NotStatic(f"{item.name}: expected a value, got None")
    match item.arrival:
        case Arrival.VALUE:
            return lookup(raw)
        case Arrival.VALUES | Arrival.OPTIONAL_VALUES:
            return tuple(None if node is None else lookup(node) for node in raw)
        case Arrival.OPERAND if isinstance(raw, torch.fx.Node) and isinstance(raw.meta["val"], torch.Tensor):
            return lookup(raw)
        case _:
            return read_static(item, raw)


def is_tensor_arrival(item: Parameter, raw: Any) -> bool:
    """Whether the argument needs the network to be read."""
    if item.arrival is Arrival.OPERAND:
        return isinstance(raw, torch.fx.Node) and isinstance(raw.meta["val"], torch.Tensor)
    return item.arrival in (Arrival.VALUE, Arrival.VALUES, Arrival.OPTIONAL_VALUES)


def read_static(item: Parameter, raw: Any) -> Any:
    """An argument that no tensor enters.

    Raises:
        NotStatic: It is symbolic and the converter needs its value.
    """
    match item.arrival:
        case Arrival.OPERAND | Arrival.SIZE:
            return _number(item.name, raw)
        case Arrival.SIZES:
            return tuple(_number(item.name, part) for part in raw)
        case Arrival.INTS:
            parts = raw if isinstance(raw, (list, tuple)) else (raw,)
            return tuple(_static(item.name, part) for part in parts)
        case Arrival.INT | Arrival.SCALAR | Arrival.BOOL:
            return _static(item.name, raw)
        case Arrival.FLOAT:
            return float(_static(item.name, raw))
        case _:
            return raw


def _number(name: str, raw: Any) -> Scalar | Size:
    """A number, or the expression of a symbolic integer."""
    value = raw.meta["val"] if isinstance(raw, torch.fx.Node) else raw
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, torch.SymInt):
        return size_of(value)
    raise NotStatic(f"{name}: expected a number known when the engine is built, got {value}")


def _static(name: str, raw: Any) -> Scalar:
    value = _number(name, raw)
    if isinstance(value, sympy.Expr):
        raise NotStatic(f"{name}: expected a number known when the engine is built, got the symbolic {value}")
    return value
