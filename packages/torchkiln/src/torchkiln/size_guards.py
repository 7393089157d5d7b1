"""What a model's own branches and checks asked of sizes while it was captured: the graph is right only where it holds."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch.fx
from torch.utils._sympy.functions import ToFloat
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from torchkiln.ranges import shape_env_of
from torchkiln_core import DimRange, ExportError, PlanFormatError, Size
from torchkiln_core.size import evaluate, format_size, parse_size, symbols_of

_KINDS = {"==": sympy.Eq, "!=": sympy.Ne, "<": sympy.Lt, "<=": sympy.Le, ">": sympy.Gt, ">=": sympy.Ge}
_RELATIONS = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
SMALLEST_TRACED = 2
"""Tracing takes sizes of 0 and 1 apart from all others, and asks nothing of them that a program of a larger size needs."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """``left relation right`` of two sizes."""

    relation: str
    left: Size
    right: Size

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether it is true of these sizes."""
        return bool(_RELATIONS[self.relation](evaluate(self.left, sizes), evaluate(self.right, sizes)))

    def renamed(self, symbols: Mapping[sympy.Symbol, sympy.Symbol]) -> Comparison:
        """The same of other symbols."""
        left, right = (size if isinstance(size, int) else size.xreplace(symbols) for size in (self.left, self.right))
        return Comparison(self.relation, left, right)

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"


@dataclass(frozen=True, slots=True)
class SizeGuard:
    """At least one of some comparisons must hold in every call.

    Attributes:
        comparisons: Of sizes.
        question: What the model's own Python asks, and where, if that is why.
    """

    comparisons: tuple[Comparison, ...]
    question: str = ""

    @property
    def symbols(self) -> frozenset[str]:
        """Names of the symbols that it compares."""
        return frozenset(name for item in self.comparisons for size in (item.left, item.right) for name in symbols_of(size))

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether it is true of these sizes."""
        return any(item.holds(sizes) for item in self.comparisons)

    def renamed(self, symbols: Mapping[sympy.Symbol, sympy.Symbol]) -> SizeGuard:
        """The same of other symbols."""
        return SizeGuard(tuple(item.renamed(symbols) for item in self.comparisons), self.question)

    def __str__(self) -> str:
        return " or ".join(map(str, self.comparisons))


def guards_of(module: torch.fx.GraphModule, dims: Mapping[str, DimRange]) -> tuple[SizeGuard, ...]:
    """The guards that capture put on the sizes of a graph and that the ranges of its symbols do not imply.

    Raises:
        ExportError: A guard cannot be checked in a call.
    """
    found: dict[SizeGuard, None] = {}
    for condition in conditions_of(module, dims):
        found |= {SizeGuard(comparisons): None for comparisons in clauses_of(condition)}
    return tuple(found)


def conditions_of(module: torch.fx.GraphModule, dims: Mapping[str, DimRange]) -> list[Any]:
    """The same as expressions."""
    environment = shape_env_of(module)
    guards = [] if environment is None else [environment.replace(guard.expr) for guard in environment.guards]
    named = [(guard, {symbol.name for symbol in guard.free_symbols}) for guard in guards]
    return [guard for guard, names in named if names and names <= set(dims) and not _is_implied(guard, dims)]


def clauses_of(expression: Any) -> list[tuple[Comparison, ...]]:
    """A condition on sizes as clauses that must all hold, of comparisons of which one must.

    Raises:
        ExportError: It cannot be checked in a call.
    """
    clauses = sympy.to_cnf(expression)
    return [tuple(_comparisons(clause)) for clause in (clauses.args if isinstance(clauses, sympy.And) else (clauses,))]


def _is_implied(expression: Any, dims: Mapping[str, DimRange]) -> bool:
    if expression == sympy.true:
        return True
    ranges = {}
    for symbol in expression.free_symbols:
        bounds = dims[symbol.name]
        ranges[symbol] = ValueRanges(max(bounds.min, min(SMALLEST_TRACED, bounds.max)), bounds.max)
    return bool(bound_sympy(expression, ranges).lower == sympy.true)


def _comparisons(clause: Any) -> Iterator[Comparison]:
    for item in clause.args if isinstance(clause, sympy.Or) else (clause,):
        relation = item.args[0].negated if isinstance(item, sympy.Not) else item
        name = next((name for name, kind in _KINDS.items() if isinstance(relation, kind)), None)
        if name is None or not all(side.is_integer and not side.has(ToFloat, sympy.Float) for side in relation.args):
            raise ExportError(f"the graph holds only where {clause}, which cannot be checked in a call", fix="make that dimension static")
        yield Comparison(name, *(int(side) if side.is_Integer else side for side in relation.args))


def guard_to_record(guard: SizeGuard) -> Any:
    """JSON data of a guard."""
    comparisons = [[item.relation, format_size(item.left), format_size(item.right)] for item in guard.comparisons]
    return {"any": comparisons, "question": guard.question} if guard.question else comparisons


def guard_from_record(record: Any) -> SizeGuard:
    """Reads what ``guard_to_record`` wrote.

    Raises:
        PlanFormatError: Not a guard.
    """
    question = ""
    if isinstance(record, dict):
        record, question = record["any"], str(record["question"])
    comparisons = []
    for relation, left, right in record:
        if relation not in _RELATIONS:
            raise PlanFormatError(f"size guard: unknown relation {relation!r}")
        comparisons.append(Comparison(relation, parse_size(left), parse_size(right)))
    return SizeGuard(tuple(comparisons), question)
