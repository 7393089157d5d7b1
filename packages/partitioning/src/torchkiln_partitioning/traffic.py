"""How many bytes a value carries across a border."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.fx

from torchkiln_core.size import Size, evaluate, symbols_of
from torchkiln_core.spec import DimRange
from torchkiln_partitioning.placement import CallGraph, Placement
from torchkiln_partitioning.refine import Transfer
from torchkiln_partitioning.sizes import dims_of
from torchkiln_partitioning.view import Role, is_tensor

_UNKNOWN = 128


def find_transfers(placement: Placement, calls: CallGraph) -> list[Transfer]:
    """The tensors that cross wherever maker and reader are apart: inputs of the program and results of calls that run once."""
    view = placement.view
    sizes = _Sizes(view.program.dims)
    transfers: list[Transfer] = []
    for node in view.nodes:
        owner = placement.owners.get(node)
        if not is_tensor(node) or (owner is None and view.roles[node] is not Role.INPUT):
            continue
        readers = [calls.vertices[user] for user in node.users if user in calls.vertices]
        if readers:
            producer = None if owner is None else calls.vertices[owner]
            transfers.append(Transfer(sizes.bytes_of(node), producer, tuple(readers)))
    return transfers


class _Sizes:
    """Evaluates sizes at what the program is tuned for; a symbol of unknown range counts as 128."""

    def __init__(self, dims: Mapping[str, DimRange]) -> None:
        self._values = {name: dim.opt for name, dim in dims.items()}
        self._known: dict[Size, int] = {}

    def bytes_of(self, node: torch.fx.Node) -> int:
        value: torch.Tensor = node.meta["val"]
        count = value.dtype.itemsize
        for size in dims_of(node):
            count *= size if isinstance(size, int) else self._evaluate(size)
        return count

    def _evaluate(self, size: Size) -> int:
        if size not in self._known:
            names = symbols_of(size)
            self._known[size] = max(evaluate(size, {name: self._values.get(name, _UNKNOWN) for name in names}), 0)
        return self._known[size]
