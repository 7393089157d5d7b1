"""``ConverterRegistry``: the converters of a compilation, a value that callers extend and pass on."""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any

from torchkiln_converters.converter import Converter
from torchkiln_core import OpCall, Rejection
from torchkiln_core.errors import InternalError

ENTRY_POINTS = "torchkiln.converters"
"""Entry point group: each names a module, a converter, or an iterable of converters."""


class ConverterRegistry:
    """Converters by operator. Implements ``torchkiln_core.SupportOracle``."""

    def __init__(self, converters: Iterable[Converter[...]] = ()) -> None:
        self._converters = tuple(converters)
        self._by_target: Mapping[Callable[..., Any], Converter[...]] = MappingProxyType(
            {target: item for item in self._converters for target in item.targets}
        )

    @property
    def targets(self) -> frozenset[Callable[..., Any]]:
        """Operators that have a converter."""
        return frozenset(self._by_target)

    def __getitem__(self, target: Callable[..., Any]) -> Converter[...]:
        if target not in self._by_target:
            raise InternalError(f"no converter for {target}")
        return self._by_target[target]

    def extend(self, *converters: Converter[...]) -> ConverterRegistry:
        """A registry that also has ``converters``; a later one replaces an earlier one for the same operator."""
        return ConverterRegistry((*self._converters, *converters))

    def deterministic(self) -> ConverterRegistry:
        """The same converters, refusing calls whose result depends on the order of writes."""
        return ConverterRegistry(item.deterministic() for item in self._converters)

    def reject(self, call: OpCall) -> Rejection | None:
        """Why ``call`` cannot be converted, or ``None``. Rule ``no-converter``, or one of the converter's."""
        found = self._by_target.get(call.target)
        if found is None:
            return Rejection.of(call, "no-converter", "no converter is registered for this operator")
        return found.reject(call)


def converters_in(source: Any) -> tuple[Converter[...], ...]:
    """The converters in a module, an iterable, or a converter itself.

    Raises:
        TypeError: Something else stands there.
    """
    if isinstance(source, Converter):
        return (source,)
    if isinstance(source, ModuleType):
        own = [item for item in vars(source).values() if isinstance(item, (Converter, tuple))]
        return tuple(found for item in own for found in ((item,) if isinstance(item, Converter) else item) if isinstance(found, Converter))
    items = tuple(source)
    if not all(isinstance(item, Converter) for item in items):
        raise TypeError(f"expected converters, got {source!r}")
    return items


def builtin_converters() -> tuple[Converter[...], ...]:
    """The converters of this package, by module name."""
    from torchkiln_converters import ops

    names = sorted(module.name for module in pkgutil.iter_modules(ops.__path__))
    return tuple(item for name in names for item in converters_in(importlib.import_module(f"{ops.__name__}.{name}")))


def default_registry() -> ConverterRegistry:
    """The converters of this package, extended by those that installed packages declare under ``torchkiln.converters``."""
    registry = ConverterRegistry(builtin_converters())
    for point in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        registry = registry.extend(*converters_in(point.load()))
    return registry
