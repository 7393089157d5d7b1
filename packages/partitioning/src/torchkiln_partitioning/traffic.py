"""How many bytes a value carries across a border."""

from __future__ import annotations

from torchkiln_partitioning.placement import CallGraph, Placement
from torchkiln_partitioning.refine import Transfer
from torchkiln_partitioning.view import NOBODY, Role


def find_transfers(placement: Placement, calls: CallGraph) -> list[Transfer]:
    """The tensors that cross wherever maker and reader are apart: inputs of the program and results of calls that run once."""
    view, vertices = placement.view, calls.vertices
    given, num_bytes, owners = Role.INPUT, placement.work.num_bytes, placement.owners
    transfers: list[Transfer] = []
    for position, readers in enumerate(view.readers):
        owner = owners[position]
        if view.sizes[position] is None or (owner == NOBODY and view.roles[position] is not given):
            continue
        consumers = tuple([vertices[user] for user in readers if user in vertices])
        if consumers:
            transfers.append(Transfer(num_bytes[position], None if owner == NOBODY else vertices[owner], consumers))
    return transfers
