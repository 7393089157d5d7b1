"""``node_overrides``: calls whose place an expert decides one by one."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Mapping, Sequence

from torchkiln_core.errors import PartitionError
from torchkiln_core.rejection import Rejection
from torchkiln_partitioning.levels import Kind
from torchkiln_partitioning.view import ProgramView


def find_overridden(view: ProgramView, entries: Sequence[tuple[str, str]]) -> dict[int, Kind]:
    """Where calls are wanted; of several entries that match a call the last one counts.

    Args:
        view: The program.
        entries: Names of nodes of the lowered program, where ``*`` stands for any text, with ``"engine"`` or ``"torch"``.

    Raises:
        ValueError: A name matches no call.
    """
    if not entries:
        return {}
    names = {position: view.nodes[position].name for position in view.operators()}
    found: dict[int, Kind] = {}
    for pattern, place in entries:
        matches = [position for position, name in names.items() if fnmatch.fnmatchcase(name, pattern)]
        if not matches:
            known = list(names.values())
            close = difflib.get_close_matches(pattern, known, n=1)
            shown = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
            hint = f"did you mean {close[0]!r}?" if close else f"calls: {shown}"
            raise ValueError(f"node_overrides: no call of the lowered program is named {pattern!r}; {hint}")
        found.update(dict.fromkeys(matches, Kind(place)))
    return found


def require_possible(overridden: Mapping[int, Kind], rejections: Mapping[int, Rejection]) -> None:
    """Checks that every call that is wanted in an engine may run there.

    Raises:
        PartitionError: One may not.
    """
    for position, kind in overridden.items():
        rejection = rejections.get(position) if kind is Kind.ENGINE else None
        if rejection is not None:
            raise PartitionError(
                f"node_overrides: expected {rejection.node} in an engine, but it cannot run there: {rejection}",
                node=rejection.node,
                where=rejection.where,
                fix="leave the node out of node_overrides, or register a converter that takes the call",
            )
