"""Whether what a model asked of sizes has the same answers for sizes of 0 and 1."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
from sympy.logic.boolalg import Boolean
from torch.fx.experimental.sym_node import SymNode
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.symbol import SymT, symbol_is_type
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from torchkiln.asked import Traced
from torchkiln.ranges import shape_env_of
from torchkiln.size_guards import SMALLEST_TRACED, conditions_of
from torchkiln.size_meanings import SizeMeanings
from torchkiln.small_sizes import squeezed_sizes
from torchkiln.written_memory import may_be_views
from torchkiln_core import DimRange

Region = Mapping[str, int]
"""The symbols that are 0 or 1; all others are at least 2."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """A question that has, or may have, another answer in a region than was traced.

    Attributes:
        condition: What must hold of the region's other symbols for the traced answer; false where nothing is known to help.
        question: What was asked, and where.
    """

    condition: sympy.Basic
    question: str


class SizeAnswers:
    """The questions of one export.

    Args:
        traced: The export.
        dims: The range of every symbol of its inputs.
    """

    def __init__(self, traced: Traced, dims: Mapping[str, DimRange]) -> None:
        self._asked = traced.asked
        self._environment = shape_env_of(traced.program.graph_module)
        self._ranges: dict[str, ValueRanges[Any]] = {name: ValueRanges(bounds.min, bounds.max) for name, bounds in dims.items()}
        self._ranges |= {name: ValueRanges(max(SMALLEST_TRACED, dims[name].min), dims[name].max) for name in input_sizes(dims)}
        self._copies = may_be_views(traced.program.graph)
        self._squeezed = squeezed_sizes(traced.program.graph_module)
        self._checked = conditions_of(traced.program.graph_module, dims)

    def doubts(self, region: Region) -> tuple[Doubt, ...]:
        """The questions whose answers are not known to be the same in a region."""
        meanings = SizeMeanings(self._asked, region)
        return tuple(dict.fromkeys((*self._of_questions(meanings, region), *self._of_sizes(meanings), *self._of_tensors(meanings, region))))

    def _of_questions(self, meanings: SizeMeanings, region: Region) -> Iterator[Doubt]:
        checked = {_at(meanings, condition) for condition in self._checked}
        for question in self._asked.questions:
            if question.node.shape_env is not self._environment:
                condition = self._anywhere(question.node, question.answer, region)
            elif meanings.symbols(question.node).isdisjoint(region):
                continue
            else:
                condition = _condition(meanings, question.node, question.answer)
                if condition in checked or _holds(condition, self._ranges):
                    continue
                if not all(symbol_is_type(symbol, SymT.SIZE) for symbol in condition.free_symbols):
                    condition = sympy.false  # no call can check what depends on data
            if condition != sympy.true:
                yield Doubt(condition, f"`{meanings.show(question.node)}` at {question.place}")

    def _of_sizes(self, meanings: SizeMeanings) -> Iterator[Doubt]:
        """Sizes that torch simplified to others."""
        for key, place in self._asked.places.items():
            node, _ = self._asked.computed[key]
            if node.shape_env is self._environment and not _is_as_traced(meanings, node):
                yield Doubt(sympy.false, f"`{meanings.show(node)}` at {place}")

    def _of_tensors(self, meanings: SizeMeanings, region: Region) -> Iterator[Doubt]:
        """Ranks and strides, which depend on sizes."""
        for layout in self._asked.layouts:
            own = all(size.shape_env is self._environment for size in layout.sizes)
            if not own or any(meanings.symbols(size) & region.keys() for size in layout.sizes):
                yield Doubt(sympy.false, f"`is_contiguous()` at {layout.place}")
        for sizes, what in self._copies:
            if not sizes.isdisjoint(region):
                yield Doubt(sympy.false, what)
        for size, place in self._squeezed.items():
            condition = _at(meanings, sympy.Ne(size, 1))
            if not _holds(condition, self._ranges):
                yield Doubt(condition, f"`{size} == 1` by a squeeze at {place}")

    def _anywhere(self, node: SymNode, answer: bool, region: Region) -> sympy.Basic:
        """Whether the answer is the same whichever symbols are small: a branch of ``torch.cond`` has symbols of its own."""
        names = sorted(SizeMeanings(self._asked, {}).symbols(node))
        ranges = dict.fromkeys(names, ValueRanges(SMALLEST_TRACED, int_oo))
        for sizes in itertools.product((None, *{*region.values()}), repeat=len(names)):
            small = {name: size for name, size in zip(names, sizes, strict=True) if size is not None}
            if small and not _holds(_condition(SizeMeanings(self._asked, small), node, answer), ranges):
                return sympy.false
        return sympy.true


def _at(meanings: SizeMeanings, condition: sympy.Basic) -> sympy.Basic:
    try:
        return meanings.at(condition)
    except ZeroDivisionError:
        return sympy.true  # Python raises too


def _condition(meanings: SizeMeanings, node: SymNode, answer: bool) -> sympy.Basic:
    """What must hold for an answer."""
    try:
        value = meanings.of(node)
    except (ZeroDivisionError, TypeError):
        # Python raises, which a model may catch, or torch has no formula.
        return sympy.false
    value = value if isinstance(value, Boolean) else sympy.Ne(value, 0)
    return value if answer else sympy.Not(value)


def _holds(condition: sympy.Basic, ranges: Mapping[str, ValueRanges[Any]]) -> bool:
    """Whether a condition holds in a range."""
    symbols = condition.free_symbols
    if not symbols:
        return condition is sympy.true
    if not {symbol.name for symbol in symbols} <= ranges.keys():
        return False
    return bool(bound_sympy(condition, {symbol: ranges[symbol.name] for symbol in symbols}).lower == sympy.true)


def _is_as_traced(meanings: SizeMeanings, node: SymNode) -> bool:
    try:
        return bool(sympy.expand(meanings.of(node) - meanings.at(node.expr)) == 0)
    except (ZeroDivisionError, TypeError):
        return False


def input_sizes(dims: Mapping[str, DimRange]) -> list[str]:
    """The symbols that are sizes of inputs, not numbers that depend on data."""
    return [name for name in dims if symbol_is_type(sympy.Symbol(name), SymT.SIZE)]
