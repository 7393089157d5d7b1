"""Engine segments that could not be built or run, found once the segments are known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchkiln_core.rejection import Rejection
from torchkiln_core.size import Size
from torchkiln_partitioning.divide import Division
from torchkiln_partitioning.draft import Draft
from torchkiln_partitioning.levels import Kind
from torchkiln_partitioning.placement import Placement
from torchkiln_partitioning.shapes import dim_of
from torchkiln_partitioning.sizes import DimOf, Literal, Recomputed
from torchkiln_partitioning.view import ProgramView, Role


def beyond_limits(division: Division, drafts: tuple[Draft, ...]) -> dict[int, Rejection]:
    """Calls to move to PyTorch because an engine takes in a size of unknown range, or takes in nothing.

    Each fault moves every call that can cause it, not only those of the segment at hand, so it cannot come back in another division.
    """
    placement = division.placement
    view = placement.view
    engines = [draft for draft in drafts if draft.kind is Kind.ENGINE]
    if view.varying and not _Ranges(view).cover(size for draft in engines for value in draft.inputs for size in view.sizes[value] or ()):
        return _unranged(placement)
    if any(not draft.inputs for draft in engines):
        return _constant(placement)
    return {}


class _Ranges:
    """Which sizes have a range."""

    def __init__(self, view: ProgramView) -> None:
        self._dims = view.program.dims
        self._known: dict[Size, bool] = {}

    def cover(self, sizes: Iterable[Size]) -> bool:
        """Whether all of them have one."""
        return not self.missing(sizes)

    def missing(self, sizes: Iterable[Size]) -> list[Size]:
        """Those that have none, each once."""
        found: dict[Size, None] = {}
        for size in sizes:
            if size not in self._known:
                self._known[size] = dim_of(size, self._dims) is not None
            if not self._known[size]:
                found[size] = None
        return list(found)


def _unranged(placement: Placement) -> dict[int, Rejection]:
    ranges = _Ranges(placement.view)
    refused: dict[int, Rejection] = {}
    for call, kind in placement.kinds.items():
        missing = ranges.missing(_sizes_behind(placement, call)) if kind is Kind.ENGINE else []
        if missing:
            message = f"expected sizes of known range, got {', '.join(map(str, missing))}"
            refused[call] = Rejection.of_node(placement.view.nodes[call], "range", message)
    return refused


def _sizes_behind(placement: Placement, call: int) -> Iterator[Size]:
    """The sizes of all tensors that an engine may take in for a call: for itself, its copies of cheap calls and its numbers."""
    view, recipes = placement.view, placement.recipes.recipes
    reads = dict.fromkeys(read for position in (call, *placement.copies_for([call])) for read in view.reads[position])
    waiting = list(reads)
    while waiting:
        read = waiting.pop()
        match recipes.get(read):
            case DimOf(tensor, _):
                yield from view.sizes[tensor] or ()
            case Recomputed(original):
                waiting += [other for other in view.reads[original] if other not in reads]
                reads.update(dict.fromkeys(view.reads[original]))
            case _:
                yield from view.sizes[read] or ()


def _constant(placement: Placement) -> dict[int, Rejection]:
    """Engine calls that depend on weights and constants only."""
    view, recipes = placement.view, placement.recipes.recipes
    constant: set[int] = set()
    for position, role in enumerate(view.roles):
        if position in view.numbers:
            fixed = isinstance(recipes.get(position), Literal)
        elif role is Role.INPUT or placement.kinds.get(position) is Kind.TORCH:
            fixed = False
        else:
            fixed = constant.issuperset(view.reads[position])
        if fixed:
            constant.add(position)
    message = "expected a call that depends on an input of the program, got one of weights and constants only"
    calls = (call for call, kind in placement.kinds.items() if kind is Kind.ENGINE and call in constant)
    return {call: Rejection.of_node(view.nodes[call], "constant", message) for call in calls}
