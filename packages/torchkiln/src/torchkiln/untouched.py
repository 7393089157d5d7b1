"""A model left as it was, whatever its forward writes to attributes, and the generators of random numbers with it."""

from __future__ import annotations

import contextlib
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
            attributes.clear()
            for name, (value, items) in copies.items():
                attributes[name] = value
                _restore(value, items)


def _copies(attributes: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (value, type(value)(value) if type(value) in _CONTAINERS else None) for name, value in attributes.items()}


def _restore(value: Any, items: Any) -> None:
    match items:
        case dict() | set():
            value.clear()
            value.update(items)
        case list():
            value[:] = items
