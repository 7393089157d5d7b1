"""Results of transformers' ``ModelOutput`` classes, made without their constructors.

A constructor looks at each field in Python, which takes a quarter of the host time of a call. What it makes of tensors does not depend on
their values, so it is asked once, and what it made is made again: a dict with attributes.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch.utils import _pytree as pytree

_BASE = ("transformers.utils.generic", "ModelOutput")
_DECIDING = ("__new__", "__post_init__", "__setattr__", "__setitem__")
"""Methods that decide what a constructor makes."""


@dataclass(frozen=True, slots=True)
class ModelOutputForm:
    """What the constructor of a class makes of given fields.

    Attributes:
        kind: The class.
        keys: Key and attribute of each value, in the order of the dict.
        places: Where the value of each key stands among the fields.
        absent: All attributes, without their values.
    """

    kind: type[OrderedDict[str, Any]]
    keys: tuple[str, ...]
    places: tuple[int, ...]
    absent: Mapping[str, None]

    @classmethod
    def of(cls, kind: Any, context: Any, count: int) -> Self | None:
        """``None`` where the class is no ``ModelOutput``, or has a constructor of its own.

        Args:
            kind: The class.
            context: What pytree knows of it: the names of the fields.
            count: Number of fields.
        """
        if count == 0 or not _is_plain(kind):
            return None
        fields = [torch.empty(0) for _ in range(count)]
        made = pytree.SUPPORTED_NODES[kind].unflatten_fn(fields, context)
        places = {id(field): place for place, field in enumerate(fields)}
        values = {key: places.get(id(value)) for key, value in OrderedDict.items(made)}
        attributes = {name: None if value is None else places.get(id(value), -1) for name, value in vars(made).items()}
        if {name: place for name, place in attributes.items() if place is not None} != values:
            return None
        return cls(kind, tuple(values), tuple(place for place in values.values() if place is not None), dict.fromkeys(attributes))

    def takes(self, fields: Sequence[Any]) -> bool:
        """Whether the constructor makes the same of these fields: it leaves out ``None``, and looks into a first one that is no tensor."""
        return isinstance(fields[0], torch.Tensor) and not any(field is None for field in fields)

    def make(self, fields: Sequence[Any]) -> Any:
        """An object of the class."""
        made = self.kind.__new__(self.kind)
        named = [(key, fields[place]) for key, place in zip(self.keys, self.places, strict=True)]
        for key, field in named:
            OrderedDict.__setitem__(made, key, field)
        attributes = vars(made)
        attributes.update(self.absent)
        attributes.update(named)
        return made


def _is_plain(kind: Any) -> bool:
    if not (isinstance(kind, type) and issubclass(kind, OrderedDict)):
        return False
    base = next((item for item in kind.__mro__ if (item.__module__, item.__qualname__) == _BASE), None)
    return base is not None and kind is not base and _generated(kind, base) and all(_inherits(kind, base, name) for name in _DECIDING)


def _inherits(kind: type, base: type, name: str) -> bool:
    return getattr(kind, name, None) is getattr(base, name, None)


def _generated(kind: Any, base: Any) -> bool:
    """Whether the constructor is what ``dataclass`` writes, around which newer releases put one of their own to rename fields."""
    written = inspect.unwrap(kind.__init__)
    around = written is kind.__init__ or kind.__init__.__code__.co_filename == base.__init__.__code__.co_filename
    return around and hasattr(written, "__code__") and written.__code__.co_qualname.startswith("__create_fn__")
