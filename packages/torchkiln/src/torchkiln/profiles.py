"""Named profiles: from the names that users give dimensions to the symbols of a program."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch.fx
from torch._dynamo.source import LocalSource, TensorPropertySource
from torch.export import dynamic_shapes as export_shapes
from torch.utils import _pytree as pytree

from torchkiln.checks import ArgumentCheck
from torchkiln.convention import CallingConvention
from torchkiln.ranges import shape_env_of
from torchkiln_core import DimRange, Network, Profile
from torchkiln_core.profile import DimKey
from torchkiln_core.size import linear
from torchkiln_runtime import input_symbols, narrowed

Names = Mapping[DimKey, str]
"""The symbol of each dimension that a user can name."""


@dataclass(frozen=True, slots=True)
class SymbolRanges:
    """A profile in the symbols of a program; those that it leaves out keep their range."""

    name: str
    dims: Mapping[str, DimRange]


def names_of_checks(checks: Sequence[ArgumentCheck]) -> dict[DimKey, str]:
    """Dimensions by argument and index, where one is a symbol of its own."""
    return {
        (check.name, index): size.name
        for check in checks
        if check.kind == "tensor"
        for index, size in enumerate(check.shape)
        if isinstance(size, sympy.Symbol)
    }


def names_of_dims(model: Any, convention: CallingConvention, dynamic_shapes: Any) -> dict[DimKey, str]:
    """Dimensions by the name of their ``torch.export.Dim``, as the user declared them."""
    places = pytree.tree_unflatten(list(range(len(convention.checks))), convention.in_spec)
    names: dict[DimKey, str] = {}

    def read(_: Any, place: Any, spec: Any) -> None:
        items = spec.items() if isinstance(spec, Mapping) else enumerate(spec or ())
        for index, dim in items:
            size = convention.checks[place].shape[index] if isinstance(place, int) else 0
            name = getattr(getattr(dim, "root", dim), "__name__", None)
            if name is not None and (line := linear(size)) is not None:
                names[name] = line[2]

    combined: Any = export_shapes._combine_args(model, *places)
    if isinstance(dynamic_shapes, (tuple, list)):
        combined = type(dynamic_shapes)(combined.values())
    export_shapes._tree_map_with_path(read, combined, dynamic_shapes, tree_name="inputs")
    return names


def names_of_sources(graph: torch.fx.GraphModule) -> dict[DimKey, str]:
    """Dimensions by argument and index in a graph that Dynamo captured."""
    env = shape_env_of(graph)
    names: dict[DimKey, str] = {}
    for symbol, sources in () if env is None else env.var_to_sources.items():
        for source in sources:
            if isinstance(source, TensorPropertySource) and isinstance(source.base, LocalSource) and source.idx is not None:
                names[source.base.local_name, source.idx] = symbol.name
    return names


def resolve(profiles: Sequence[Profile], dims: Mapping[str, DimRange], names: Names) -> tuple[SymbolRanges, ...]:
    """Profiles in the symbols of a program; dimensions that it does not have are left out.

    Raises:
        ValueError: A range is not within what the program declares.
    """
    return tuple(
        SymbolRanges(
            profile.name,
            {
                names[key]: _range(profile.name, key, sizes, dims[names[key]])
                for key, sizes in profile.dims.items()
                if names.get(key) in dims
            },
        )
        for profile in profiles
    )


def check_names(profiles: Sequence[Profile], names: Names) -> None:
    """Raises ``ValueError`` when a profile names a dimension that there is not."""
    for profile in profiles:
        for key in profile.dims:
            if key not in names:
                known = ", ".join(map(repr, names)) or "none: no dimension is dynamic"
                raise ValueError(f"profile {profile.name}: {key!r} is not a dynamic dimension; expected one of {known}")


def _range(profile: str, key: DimKey, sizes: Sequence[int], declared: DimRange) -> DimRange:
    low, opt, high = sizes
    if low < declared.min or (high > declared.max and not declared.assumed):
        raise ValueError(
            f"profile {profile}: {key!r}: expected sizes within {declared.min} to {declared.max}, as dynamic_shapes declares, "
            f"got {low} to {high}"
        )
    return DimRange(declared.symbol, low, opt, high)


def hull(dims: Mapping[str, DimRange], profiles: Sequence[SymbolRanges]) -> dict[str, DimRange]:
    """The range of each symbol over all profiles, tuned as the first says; ``dims`` itself where there are none."""
    if not profiles:
        return dict(dims)
    ranges = {symbol: [profile.dims.get(symbol, bounds) for profile in profiles] for symbol, bounds in dims.items()}
    return {symbol: _around(found) for symbol, found in ranges.items()}


def _around(ranges: Sequence[DimRange]) -> DimRange:
    low, high = min(item.min for item in ranges), max(item.max for item in ranges)
    return dataclasses.replace(ranges[0], min=low, max=high)


def variants(network: Network, profiles: Sequence[SymbolRanges]) -> tuple[tuple[str, Network], ...]:
    """The networks of which plans are built: one for each profile that differs in the network's own symbols, by name.

    Symbols with one value are replaced by it, so that such a plan is static.
    """
    symbols = input_symbols(network)
    whole = {symbol: network.dims[symbol] for symbol in sorted(symbols)}
    named = [(profile.name, {symbol: profile.dims.get(symbol, bounds) for symbol, bounds in whole.items()}) for profile in profiles]
    different = {tuple(dims.values()): (name, dims) for name, dims in reversed(named)}
    if len(different) < 2:
        # The profiles agree on what this network sees of them.
        different = {(): ("", next(iter(different.values()), ("", whole))[1])}
    found = [(name, narrowed(network, dims)) for name, dims in reversed(list(different.values()))]
    is_whole = len(found) == 1 and not any(bounds.min == bounds.max for bounds in whole.values())
    return (("", network),) if is_whole else tuple(found)
