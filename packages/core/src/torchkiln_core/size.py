"""Sizes: integers, or expressions over the symbols of a program's dynamic dimensions.

Saved files hold sizes as text in a small grammar (names, integers, ``+ - * // %``, ``min``, ``max``), read by walking Python's
syntax tree and never by evaluating it.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, Max, Min, PythonMod
from torch.utils._sympy.printers import PythonPrinter

from torchkiln_core.errors import InternalError, PlanFormatError

Size: TypeAlias = int | sympy.Expr
"""A dimension: an integer, or an expression over the symbols of the program's inputs."""

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda a, b: a // b if isinstance(a, int) and isinstance(b, int) else FloorDiv(a, b),
    ast.Mod: lambda a, b: a % b if isinstance(a, int) and isinstance(b, int) else PythonMod(a, b),
}
_CALLS: dict[str, Callable[..., Any]] = {"max": Max, "min": Min}


def size_of(value: int | torch.SymInt) -> Size:
    """The size that an ``int`` or ``torch.SymInt`` stands for."""
    if isinstance(value, torch.SymInt):
        expr = value.node.expr
        return int(expr) if isinstance(expr, sympy.Integer) else cast(sympy.Expr, expr)
    return int(value)


def sizes_of(values: Sequence[int | torch.SymInt]) -> tuple[Size, ...]:
    """The sizes of a shape ``[*]``."""
    sizes = tuple(values)
    for value in sizes:
        if type(value) is not int:
            return tuple(map(size_of, sizes))
    return sizes


def symbols_of(size: Size) -> tuple[str, ...]:
    """Names of the symbols in a size, sorted."""
    return () if isinstance(size, int) else tuple(sorted(symbol.name for symbol in size.free_symbols))


def evaluate(size: Size, symbols: Mapping[str, int]) -> int:
    """The integer that ``size`` has when each symbol has the given value.

    Raises:
        InternalError: A symbol has no value, or the result is not an integer.
    """
    if isinstance(size, int):
        return size
    missing = [name for name in symbols_of(size) if name not in symbols]
    if missing:
        raise InternalError(f"size {size}: no value for {', '.join(missing)}; known: {', '.join(sorted(symbols)) or 'none'}")
    try:
        result = size.xreplace({symbol: sympy.Integer(symbols[symbol.name]) for symbol in size.free_symbols})
    except ZeroDivisionError as error:
        raise InternalError(f"size {size}: division by zero for {dict(symbols)}") from error
    if not result.is_Integer:
        raise InternalError(f"size {size}: expected an integer, got {result} for {dict(symbols)}")
    return int(result)


def linear(size: Size) -> tuple[int, int, str] | None:
    """``(a, b, symbol)`` where ``size`` is ``a * symbol + b`` with ``a`` other than 0."""
    if isinstance(size, int) or len(size.free_symbols) != 1:
        return None
    (symbol,) = size.free_symbols
    offset, rest = sympy.expand(size).as_coeff_Add()
    factor, base = rest.as_coeff_Mul()
    return (int(factor), int(offset), symbol.name) if base == symbol and factor.is_Integer and offset.is_Integer else None


@dataclass(frozen=True, slots=True)
class Through:
    """A size by way of another: ``(known - subtrahend) // divisor * factor + offset``, where the division leaves no rest."""

    known: sympy.Expr
    subtrahend: int
    divisor: int
    factor: sympy.Expr
    offset: int


def through(size: sympy.Expr, others: Iterable[sympy.Expr]) -> Iterator[Through]:
    """The ways to ``size`` from others that may be known where its symbols are not, as ``8*a*b`` is twice ``4*a*b``."""
    factor, offset, base = _affine(size)
    for known in others:
        divisor, subtrahend, part = _affine(known)
        rest, denominator = (base / part).as_numer_denom()
        if denominator == 1 and divisor.is_Integer and factor.is_Integer:
            yield Through(known, int(subtrahend), int(divisor), factor * rest, int(offset))


def _affine(size: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr, sympy.Expr]:
    """``(a, b, base)`` where ``size`` is ``a * base + b`` and no number divides ``base``."""
    offset, rest = sympy.expand(size).as_coeff_Add()
    factor, base = rest.as_content_primitive()
    return factor, offset, base


def bind_sizes(sizes: Iterable[Size], values: Iterable[int]) -> dict[sympy.Expr, sympy.Expr]:
    """What expressions are worth where ``sizes`` have the given values: the sizes themselves, and symbols that one of them determines."""
    known: dict[sympy.Expr, sympy.Expr] = {}
    for size, value in zip(sizes, values, strict=True):
        if isinstance(size, int):
            continue
        known[size] = sympy.Integer(value)
        offset, rest = sympy.expand(size).as_coeff_Add()
        factor, base = rest.as_coeff_Mul()
        if base.is_Symbol:
            known.setdefault(base, (sympy.Integer(value) - offset) / factor)
    return known


def bound_symbols(sizes: Iterable[Size], values: Iterable[int]) -> dict[str, int]:
    """The value of each symbol that one of ``sizes`` determines where they have the given values."""
    known = bind_sizes(sizes, values)
    return {size.name: int(value) for size, value in known.items() if isinstance(size, sympy.Symbol) and value.is_Integer}


def evaluate_bound(size: Size, known: Mapping[sympy.Expr, sympy.Expr]) -> int:
    """The integer that ``size`` is where expressions are worth what ``bind_sizes`` found.

    Raises:
        InternalError: They do not determine it.
    """
    result = size if isinstance(size, int) else size.xreplace(dict(known))
    if not isinstance(result, (int, sympy.Integer)):
        raise InternalError(f"size {size}: not determined by {', '.join(map(str, known)) or 'nothing'}")
    return int(result)


def format_size(size: Size) -> str:
    """Python text of a size; ``parse_size`` reads it back."""
    return str(size) if isinstance(size, int) else cast(str, PythonPrinter().doprint(size))


def parse_size(text: str) -> Size:
    """Reads the text that ``format_size`` writes.

    Raises:
        PlanFormatError: The text is not in the grammar.
    """
    try:
        result = _read(ast.parse(text, mode="eval").body)
    except PlanFormatError:
        raise
    except (SyntaxError, RecursionError, MemoryError, ValueError, TypeError, ArithmeticError, AssertionError) as error:
        # Python's parser and sympy's constructors refuse bad text in all of these ways.
        raise PlanFormatError(f"size {text[:80]!r}: not an integer expression") from error
    if isinstance(result, (int, sympy.Integer)):
        return int(result)
    if not result.is_integer:
        raise PlanFormatError(f"size {text[:80]!r}: expected an integer, got {result}")
    return cast(Size, result)


def _read(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.Name(id=name):
            return sympy.Symbol(name, integer=True, nonnegative=True)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_read(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_read(left), _read(right))
        case ast.Call(func=ast.Name(id=name), args=[_, *_] as args, keywords=[]) if name in _CALLS:
            return _CALLS[name](*(_read(arg) for arg in args))
        case _:
            raise PlanFormatError(f"size: {ast.dump(node)[:80]} is not allowed in an integer expression")
