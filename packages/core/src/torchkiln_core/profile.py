"""``Profile``: a named set of sizes that plans are tuned for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

DimKey: TypeAlias = str | tuple[str, int]
"""A dynamic dimension: the name of its ``Dim``, or an argument and the index of a dimension of it."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A named range ``(min, opt, max)`` of some dynamic dimensions; the others keep the whole range that the program declares.

    Raises:
        TypeError: A dimension that is neither a name nor an argument with an index, or a range that is not three integers.
        ValueError: No name, or not ``0 <= min <= opt <= max``.
    """

    name: str
    dims: Mapping[DimKey, tuple[int, int, int]]

    def __post_init__(self) -> None:
        _check(self.name, self.dims)


def _check(name: object, dims: object) -> None:
    if not isinstance(name, str) or name == "":
        raise ValueError(f"Profile: expected a name, got {name!r}")
    if not isinstance(dims, Mapping):
        raise TypeError(f"Profile {name}: expected a mapping of dimensions to (min, opt, max), got {type(dims).__name__}")
    for key, sizes in dims.items():
        match key:
            case str() | (str(), int()):
                pass
            case _:
                raise TypeError(f"Profile {name}: expected the name of a Dim, or an argument and the index of a dimension, got {key!r}")
        match sizes:
            case (int(low), int(opt), int(high)):
                if not 0 <= low <= opt <= high:
                    raise ValueError(f"Profile {name}: {key}: expected 0 <= min <= opt <= max, got {tuple(sizes)}")
            case _:
                raise TypeError(f"Profile {name}: {key}: expected (min, opt, max), three integers, got {sizes!r}")
