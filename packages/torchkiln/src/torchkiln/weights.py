"""Notices weights that change after compilation: in place, by assignment, by ``load_state_dict``.

What cannot be seen: writes through ``tensor.data`` and to weights made in inference mode, which have no version counter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from weakref import ReferenceType, ref

import torch

Fingerprint = tuple[int, ReferenceType[torch.UntypedStorage], int, int]


def fingerprint(tensors: Sequence[torch.Tensor]) -> list[Fingerprint]:
    """Identity, storage, address and version of each tensor."""
    # By the storage too: once it is gone, another one may lie at its address.
    return [
        (id(tensor), ref(tensor.untyped_storage()), tensor.data_ptr(), -1 if tensor.is_inference() else tensor._version)
        for tensor in tensors
    ]


class WeightWatch:
    """Remembers weights ``{name: tensor}`` and tells which changed since."""

    def __init__(self, weights: Mapping[str, torch.Tensor]) -> None:
        self.remember(weights)

    def changed(self, weights: Mapping[str, torch.Tensor]) -> frozenset[str]:
        """Names of the weights that differ from the remembered ones."""
        seen = fingerprint(list(weights.values()))
        if seen == self._seen:
            return frozenset()
        return frozenset(name for name, before, now in zip(self._names, self._seen, seen, strict=True) if before != now)

    def remember(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Takes these as unchanged from now on: to call once the engines are made of them, so that a failure is not forgotten."""
        self._names = tuple(weights)
        # Held so that an id is never reused by another tensor while we compare it.
        self._tensors = tuple(weights.values())
        self._seen = fingerprint(self._tensors)
