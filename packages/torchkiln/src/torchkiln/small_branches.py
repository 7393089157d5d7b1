"""Where a model's own branches make the program wrong for sizes of 0 and 1, for which they were not traced.

The sizes of a program divide into regions: in each, a symbol is 0, or 1, or at least 2. A program is traced for the region where all are
at least 2. It is right in another one where every question that the model asked has the same answer; and else where the model, exported
once more for that region, gives the same graph. All other regions are excluded by guards.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import sympy
from torch.export import ExportedProgram

from torchkiln.asked import Traced
from torchkiln.ranges import ranges_of
from torchkiln.same_graph import difference, paired_symbols
from torchkiln.size_answers import Doubt, Region, SizeAnswers, input_sizes
from torchkiln.size_guards import SMALLEST_TRACED, Comparison, SizeGuard, clauses_of, guards_of
from torchkiln_core import DimRange, ExportError
from torchkiln_core.size import parse_size

_LOG = logging.getLogger("torchkiln.lowering")
_EXPORTS = 8
"""Regions that are exported at most: many sizes of which much is asked would take too long."""

ExportFor = Callable[[ExportedProgram, Region], Traced]
Doubts = Callable[[Region], tuple[Doubt, ...]]
"""The questions whose answers are not known to be the same in a region."""


def small_branch_guards(traced: Traced, export_for: ExportFor) -> tuple[SizeGuard, ...]:
    """What must hold of sizes of 0 and 1 so that the model takes the branches that were traced, or equal ones.

    Args:
        traced: The program.
        export_for: Exports the model once more for a region. Raises ``ExportError`` where it cannot.
    """
    dims = ranges_of(traced.program.graph_module, traced.program.range_constraints)
    names = sorted(name for name in input_sizes(dims) if dims[name].min < SMALLEST_TRACED <= dims[name].max)
    if not names:
        return ()
    regions = _regions(names, dims)
    answers = SizeAnswers(traced, dims)
    right: list[tuple[Region, Doubts]] = [({}, answers.doubts)]
    wrong: list[tuple[Region, tuple[Doubt, ...]]] = []
    exports = 0
    for region in regions:
        if any(parent.items() <= region.items() and not doubts(region) for parent, doubts in right):
            continue
        same = None
        if exports < _EXPORTS:
            exports += 1
            same = _same_elsewhere(traced, dims, region, export_for)
        if same is None:
            wrong.append((region, answers.doubts(region)))
        else:
            right.append((region, same))
    return tuple(dict.fromkeys(_guards(wrong, regions, names)))


def _regions(names: Iterable[str], dims: Mapping[str, DimRange]) -> list[Region]:
    """All but the one that was traced; those with fewer small sizes first."""
    choices = [(None, *range(dims[name].min, SMALLEST_TRACED)) for name in names]
    regions = [{name: size for name, size in zip(names, sizes, strict=True) if size is not None} for sizes in itertools.product(*choices)]
    return sorted(filter(None, regions), key=len)


def _same_elsewhere(traced: Traced, dims: Mapping[str, DimRange], region: Region, export_for: ExportFor) -> Doubts | None:
    """What is asked in a region, if the model gives the same graph there."""
    try:
        other = export_for(traced.program, region)
        paired = paired_symbols(traced.program, other.program)
        different = difference(traced.program, other.program, region, paired)
        if different is None:
            theirs = {ours.name: symbol.name for symbol, ours in paired.items()}
            their_dims = {theirs[name]: dims[name] for name in theirs}
            checked = guards_of(traced.program.graph_module, dims)
            extra = [str(guard) for guard in guards_of(other.program.graph_module, their_dims) if guard.renamed(paired) not in checked]
            if not extra:
                answers = SizeAnswers(other, their_dims)
                return lambda part: answers.doubts({theirs[name]: size for name, size in part.items() if name in theirs})
            different = f"equal only where {' and '.join(extra)}"
    except ExportError as error:
        different = str(error)
    _LOG.debug("sizes %s are outside of the program: %s", dict(region), different)
    return None


def _guards(wrong: Iterable[tuple[Region, tuple[Doubt, ...]]], regions: Sequence[Region], names: Sequence[str]) -> Iterator[SizeGuard]:
    """The fewest guards that exclude the regions, or the sizes in them for which an answer differs."""
    whole: list[tuple[Region, str]] = []
    for region, doubts in wrong:
        clauses = [(clause, doubt.question) for doubt in doubts for clause in _clauses(doubt.condition)]
        if all(clause for clause, _ in clauses):
            yield from (SizeGuard((*_outside(region, names), *clause), question) for clause, question in clauses)
        else:
            whole.append((region, next(question for clause, question in clauses if not clause)))
    excluded = [region for region, _ in whole]
    covered: list[Region] = []
    for region, question in whole:
        if region in covered:
            continue
        parts = [part for part in regions if region.items() <= part.items()]
        if all(part in excluded for part in parts):
            covered += parts
            yield SizeGuard(tuple(Comparison("!=", parse_size(name), size) for name, size in region.items()), question)
        else:
            yield SizeGuard(_outside(region, names), question)


def _clauses(condition: sympy.Basic) -> list[tuple[Comparison, ...]]:
    """As ``clauses_of``; an empty clause, which never holds, where no call can check the condition."""
    if condition == sympy.false:
        return [()]
    try:
        return clauses_of(condition)
    except ExportError:
        return [()]


def _outside(region: Region, names: Iterable[str]) -> tuple[Comparison, ...]:
    """What holds of all sizes but those of a region."""
    return tuple(
        Comparison("!=", parse_size(name), region[name]) if name in region else Comparison("<", parse_size(name), SMALLEST_TRACED)
        for name in names
    )
