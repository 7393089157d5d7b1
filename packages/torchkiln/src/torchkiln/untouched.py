"""A model left as it was, whatever its forward writes to attributes, and the generators of random numbers with it."""

from __future__ import annotations

import contextlib
import operator
import random
from collections.abc import Iterator
from typing import Any

import torch

_CONTAINERS = (dict, list, set)


@contextlib.contextmanager
def untouched(model: torch.nn.Module) -> Iterator[None]:
    """Restores the attributes of all modules: which they are, and the items of those that are containers.

    Contents of tensors are not looked at, since nothing runs where this is used.
    """
    kept = [(vars(module), _copies(vars(module))) for module in list(model.modules())]
    numbers = random.getstate()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(numbers)
        for attributes, copies in kept:
            for name in attributes.keys() - copies.keys():
                del attributes[name]
            # Only what changed is written: another thread may run the model.
            for name, (value, items) in copies.items():
                if attributes.get(name) is not value:
                    attributes[name] = value
                if items is not None and not _same(value, items):
                    _restore(value, items)


def _copies(attributes: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (value, type(value)(value) if type(value) in _CONTAINERS else None) for name, value in attributes.items()}


def _same(value: Any, items: Any) -> bool:
    """Whether two containers hold the same objects."""
    if isinstance(value, dict):
        return list(value) == list(items) and all(value[key] is items[key] for key in items)
    return len(value) == len(items) and (value == items if isinstance(value, set) else all(map(operator.is_, value, items)))


def _restore(value: Any, items: Any) -> None:
    if isinstance(value, list):
        value[:] = items
    else:
        value.clear()
        value.update(items)
