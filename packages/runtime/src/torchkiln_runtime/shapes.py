"""From the shapes of an engine's inputs to those of its outputs, with the checks on the way. No tensor is read."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import sympy
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, PythonMod

from torchkiln_core import Binding, InternalError, ShapeOutOfProfile, Size
from torchkiln_core.size import linear, through

Shapes: TypeAlias = tuple[tuple[int, ...], ...]
Symbols: TypeAlias = tuple[tuple[str, int, int], ...]
"""For each symbol the index of an input and of the dimension that determines it."""
Range: TypeAlias = tuple[Sequence[int], Sequence[int]]
"""Smallest and largest shape."""
Evaluator: TypeAlias = Callable[[Sequence[int]], int]


def find_symbols(inputs: Sequence[Binding]) -> Symbols:
    """Where each symbol of the inputs can be read: from a dimension that it is, or one that is linear in it alone."""
    direct: dict[str, tuple[int, int]] = {}
    solved: dict[str, tuple[int, int]] = {}
    for index, binding in enumerate(inputs):
        for dim, size in enumerate(binding.shape):
            if isinstance(size, int):
                continue
            if isinstance(size, sympy.Symbol):
                direct.setdefault(size.name, (index, dim))
            elif (line := linear(size)) is not None:
                solved.setdefault(line[2], (index, dim))
    return tuple((name, *place) for name, place in (solved | direct).items())


def compile_size(size: Size, known: Mapping[sympy.Expr, int]) -> Evaluator | None:
    """A function from a flat row of integers to the value of ``size``, or ``None`` where a symbol is not known.

    Args:
        size: The expression.
        known: Expressions whose value stands in the row, with their index.
    """
    if isinstance(size, int) or size.is_Integer:
        value = int(size)
        return lambda row: value
    if size in known:
        return operator.itemgetter(known[size])
    parts = [compile_size(part, known) for part in size.args]
    present = [part for part in parts if part is not None]
    return _combine(size, present) if parts and len(present) == len(parts) else _through(size, known)


def _through(size: sympy.Expr, known: Mapping[sympy.Expr, int]) -> Evaluator | None:
    """``size`` by way of one that is known."""
    for way in through(size, known):
        # What remains has fewer symbols, or is a number.
        factor = compile_size(way.factor, known) if way.factor.free_symbols < size.free_symbols else None
        if factor is not None:
            read = operator.itemgetter(known[way.known])
            return lambda row: (read(row) - way.subtrahend) // way.divisor * factor(row) + way.offset
    return None


def _combine(size: sympy.Expr, parts: list[Evaluator]) -> Evaluator:
    match size:
        case sympy.Add():
            return lambda row: sum(part(row) for part in parts)
        case sympy.Mul() if all(arg.is_integer for arg in size.args):
            return lambda row: math.prod(part(row) for part in parts)
        case Max():
            return lambda row: max(part(row) for part in parts)
        case Min():
            return lambda row: min(part(row) for part in parts)
        case FloorDiv():
            return lambda row: parts[0](row) // parts[1](row)
        case Mod() | PythonMod():
            return lambda row: parts[0](row) % parts[1](row)
        case sympy.Pow() if size.exp.is_Integer and size.exp > 0:
            return lambda row: int(parts[0](row) ** parts[1](row))
        case _:
            raise InternalError(f"size {size}: {type(size).__name__} is not part of the size grammar")


class ShapeRules:
    """What the shapes of an engine's inputs may be, and the shapes of its outputs.

    Args:
        inputs: Input bindings.
        outputs: Output bindings.
        symbols: Where each symbol is read.
        ranges: Smallest and largest shape of every input.

    Attributes:
        count: Number of inputs.

    Raises:
        InternalError: An output's size has a symbol that no input determines.
    """

    def __init__(self, inputs: Sequence[Binding], outputs: Sequence[Binding], symbols: Symbols, ranges: Sequence[Range]) -> None:
        self._inputs = tuple(inputs)
        self.count = len(self._inputs)
        self._ranges = tuple((tuple(low), tuple(high)) for low, high in ranges)
        starts = [sum(len(binding.shape) for binding in inputs[:index]) for index in range(len(inputs))]
        known: dict[sympy.Expr, int] = {}
        for start, binding in zip(starts, inputs, strict=True):
            for dim, size in enumerate(binding.shape):
                if not isinstance(size, int):
                    known.setdefault(size, start + dim)
        self._solvers: list[tuple[int, int, int, str]] = []
        width = sum(len(binding.shape) for binding in inputs)
        for name, index, dim in symbols:
            size = inputs[index].shape[dim]
            if isinstance(size, (int, sympy.Symbol)):
                continue
            line = linear(size)
            if line is None:
                raise InternalError(f"symbol {name}: {size} of input {inputs[index].name} does not determine it")
            (symbol,) = size.free_symbols
            self._solvers.append((starts[index] + dim, *line[:2], f"input {inputs[index].name!r}, dimension {dim}: {size}"))
            known[symbol] = width + len(self._solvers) - 1
        self._checks = [
            (index, dim, size, check)
            for index, binding in enumerate(inputs)
            for dim, size in enumerate(binding.shape)
            if (check := self._relation(size, known, starts[index] + dim)) is not None
        ]
        self._outputs = tuple(tuple(self._output(binding, size, known) for size in binding.shape) for binding in outputs)

    @staticmethod
    def _relation(size: Size, known: Mapping[sympy.Expr, int], place: int) -> Evaluator | None:
        """How the dimension at ``place`` follows from others, unless it is where its value is read."""
        if isinstance(size, int):
            return compile_size(size, known)
        if isinstance(size, sympy.Symbol):
            return None if known[size] == place else operator.itemgetter(known[size])
        return compile_size(size, {expr: index for expr, index in known.items() if expr != size})

    @staticmethod
    def _output(binding: Binding, size: Size, known: Mapping[sympy.Expr, int]) -> Evaluator:
        result = compile_size(size, known)
        if result is None:
            raise InternalError(f"output {binding.name}: no input determines the symbols of its size {size}")
        return result

    def output_shapes(self, shapes: Shapes) -> Shapes:
        """The shapes of the outputs for input shapes ``[[*], ...]``.

        Raises:
            ShapeOutOfProfile: A rank or a size is not what the engine was built for.
        """
        for index, (binding, shape) in enumerate(zip(self._inputs, shapes, strict=True)):
            if len(shape) != len(binding.shape):
                raise ShapeOutOfProfile(f"input {binding.name!r}: expected rank {len(binding.shape)}, got shape {list(shape)}")
            for dim, (size, low, high) in enumerate(zip(shape, *self._ranges[index], strict=True)):
                if not low <= size <= high:
                    self._refuse(index, dim, f"a size in [{low}, {high}]" if low != high else str(low), size)
        row = [size for shape in shapes for size in shape]
        for place, factor, offset, what in self._solvers:
            value, rest = divmod(row[place] - offset, factor)
            if rest:
                raise ShapeOutOfProfile(f"{what} has no integer solution for size {row[place]}")
            row.append(value)
        for index, dim, size, check in self._checks:
            expected = check(row)
            if shapes[index][dim] != expected:
                self._refuse(index, dim, f"{expected}" if isinstance(size, int) else f"{expected} ({size})", shapes[index][dim])
        return tuple(tuple(size(row) for size in output) for output in self._outputs)

    def _refuse(self, index: int, dim: int, expected: str, got: int) -> None:
        raise ShapeOutOfProfile(
            f"input {self._inputs[index].name!r}, dimension {dim}: expected {expected}, got {got}\n"
            "  fix: compile again with a range for this dimension that contains the size"
        )
