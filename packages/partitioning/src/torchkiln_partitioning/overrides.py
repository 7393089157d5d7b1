"""``node_overrides``: calls whose place an expert decides one by one."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Mapping, Sequence

import torch.fx

from torchkiln_core.errors import PartitionError
from torchkiln_core.rejection import Rejection
from torchkiln_partitioning.levels import Kind


def find_overridden(nodes: Sequence[torch.fx.Node], entries: Sequence[tuple[str, str]]) -> dict[torch.fx.Node, Kind]:
    """Where calls are wanted; of several entries that match a call the last one counts.

    Args:
        nodes: Calls of a program.
        entries: Names of nodes of the lowered program, where ``*`` stands for any text, with ``"engine"`` or ``"torch"``.

    Raises:
        ValueError: A name matches no call.
    """
    found: dict[torch.fx.Node, Kind] = {}
    for pattern, place in entries:
        matches = [node for node in nodes if fnmatch.fnmatchcase(node.name, pattern)]
        if not matches:
            names = [node.name for node in nodes]
            close = difflib.get_close_matches(pattern, names, n=1)
            shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            hint = f"did you mean {close[0]!r}?" if close else f"calls: {shown}"
            raise ValueError(f"node_overrides: no call of the lowered program is named {pattern!r}; {hint}")
        found.update(dict.fromkeys(matches, Kind(place)))
    return found


def require_possible(overridden: Mapping[torch.fx.Node, Kind], rejections: Mapping[torch.fx.Node, Rejection]) -> None:
    """Checks that every call that is wanted in an engine may run there.

    Raises:
        PartitionError: One may not.
    """
    for node, kind in overridden.items():
        if kind is Kind.ENGINE and node in rejections:
            raise PartitionError(
                f"node_overrides: expected {node.name} in an engine, but it cannot run there: {rejections[node]}",
                node=node.name,
                where=rejections[node].where,
                fix="leave the node out of node_overrides, or register a converter that takes the call",
            )
