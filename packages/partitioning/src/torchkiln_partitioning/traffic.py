"""How many bytes a value carries across a border."""

from __future__ import annotations

from torchkiln_partitioning.placement import CallGraph, Placement
from torchkiln_partitioning.refine import Transfer
from torchkiln_partitioning.view import Role


def find_transfers(placement: Placement, calls: CallGraph) -> list[Transfer]:
    """The tensors that cross wherever maker and reader are apart: inputs of the program and results of calls that run once."""
    view = placement.view
    transfers: list[Transfer] = []
    for node in view.nodes:
        owner = placement.owners.get(node)
        if node not in view.sizes or (owner is None and view.roles[node] is not Role.INPUT):
            continue
        readers = [calls.vertices[user] for user in node.users if user in calls.vertices]
        if readers:
            producer = None if owner is None else calls.vertices[owner]
            transfers.append(Transfer(placement.work.bytes_of(node), producer, tuple(readers)))
    return transfers
