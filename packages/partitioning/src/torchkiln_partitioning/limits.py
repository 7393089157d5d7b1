"""Engine segments that could not be built or run, found once the segments are known."""

from __future__ import annotations

from collections.abc import Iterable

from torchkiln_core.rejection import Rejection
from torchkiln_partitioning.classify import reject
from torchkiln_partitioning.divide import Division
from torchkiln_partitioning.draft import Draft
from torchkiln_partitioning.levels import Kind
from torchkiln_partitioning.placement import Placement
from torchkiln_partitioning.sizes import Literal, Recomputed, unknown_symbols
from torchkiln_partitioning.view import Role


def beyond_limits(division: Division, drafts: tuple[Draft, ...]) -> dict[int, Rejection]:
    """Calls to move to PyTorch because an engine takes in a size of unknown range, or takes in nothing.

    Each fault moves every call that can cause it, not only those of the segment at hand, so it cannot come back in another division.
    """
    placement = division.placement
    view = placement.view
    engines = [draft for draft in drafts if draft.kind is Kind.ENGINE]
    if view.varying and any(unknown_symbols(view, position) for draft in engines for position in draft.inputs):
        return _unranged(placement)
    if any(not draft.inputs for draft in engines):
        return _constant(placement)
    return {}


def _unranged(placement: Placement) -> dict[int, Rejection]:
    refused: dict[int, Rejection] = {}
    for call, kind in placement.kinds.items():
        names = _unknown_names(placement, call) if kind is Kind.ENGINE else ()
        if names:
            refused[call] = reject(placement.view.nodes[call], "range", f"expected sizes of known range, got {', '.join(names)}")
    return refused


def _unknown_names(placement: Placement, call: int) -> Iterable[str]:
    """The symbols of unknown range that a call depends on: in what it reads itself, its copies of cheap calls, and numbers from numbers."""
    view, recipes = placement.view, placement.recipes.recipes
    reads = {read: None for position in (call, *placement.copies_for([call])) for read in view.reads[position]}
    waiting = list(reads)
    while waiting:
        position = waiting.pop()
        if isinstance(recipes.get(position), Recomputed):
            waiting += [read for read in view.reads[position] if read not in reads]
            reads.update(dict.fromkeys(view.reads[position]))
    return dict.fromkeys(name for read in reads for name in unknown_symbols(view, read))


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
    return {call: reject(view.nodes[call], "constant", message) for call in calls}
