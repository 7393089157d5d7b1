"""Engine segments that could not be built or run, found once the segments are known."""

from __future__ import annotations

import torch.fx

from torchkiln_core.rejection import Rejection
from torchkiln_partitioning.classify import reject
from torchkiln_partitioning.divide import Division
from torchkiln_partitioning.draft import Draft
from torchkiln_partitioning.levels import Kind
from torchkiln_partitioning.placement import Placement
from torchkiln_partitioning.shapes import unranged_symbols
from torchkiln_partitioning.sizes import Literal, is_number, sizes_held
from torchkiln_partitioning.view import Role


def beyond_limits(division: Division, drafts: tuple[Draft, ...]) -> dict[torch.fx.Node, Rejection]:
    """Calls to move to PyTorch because an engine takes in a size of unknown range, or takes in nothing.

    Each fault moves every call that can cause it, not only those of the segment at hand, so it cannot come back in another division.
    """
    placement = division.placement
    engines = [draft for draft in drafts if draft.kind is Kind.ENGINE]
    if any(_unknown(placement, node) for draft in engines for node in draft.inputs):
        return _unranged(placement)
    if any(not draft.inputs for draft in engines):
        return _constant(placement)
    return {}


def _unknown(placement: Placement, node: torch.fx.Node) -> tuple[str, ...]:
    """Symbols in the sizes of a value that no range is known for."""
    return unranged_symbols(sizes_held(node), placement.view.program.dims)


def _unranged(placement: Placement) -> dict[torch.fx.Node, Rejection]:
    refused: dict[torch.fx.Node, Rejection] = {}
    for call, kind in placement.kinds.items():
        names = dict.fromkeys(name for node in call.all_input_nodes for name in _unknown(placement, node))
        if kind is Kind.ENGINE and names:
            refused[call] = reject(call, "range", f"expected sizes of known range, got {', '.join(names)}")
    return refused


def _constant(placement: Placement) -> dict[torch.fx.Node, Rejection]:
    """Engine calls that depend on weights and constants only."""
    view, recipes = placement.view, placement.recipes.recipes
    constant: set[torch.fx.Node] = set()
    for node in view.nodes:
        if is_number(node):
            fixed = isinstance(recipes.get(node), Literal)
        elif view.roles[node] is Role.INPUT or placement.kinds.get(node) is Kind.TORCH:
            fixed = False
        else:
            fixed = all(other in constant for other in node.all_input_nodes)
        if fixed:
            constant.add(node)
    message = "expected a call that depends on an input of the program, got one of weights and constants only"
    calls = (call for call, kind in placement.kinds.items() if kind is Kind.ENGINE and call in constant)
    return {call: reject(call, "constant", message) for call in calls}
