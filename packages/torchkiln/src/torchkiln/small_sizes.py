"""What slices and squeezes mean for sizes of 0 and 1, which tracing leaves out of account.

``x[: 1 - n]`` has one row for every ``n`` from 2 on, and none for 1, since ``x[:0]`` is empty; ``x[:2]`` has two rows from 2 on, and one
for 1; ``x.squeeze(0)`` changes nothing from 2 on, and takes a dimension away for 1. Tracing records what holds from 2 on, so a program
must not run where such a call means something else.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch
import torch.fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from torchkiln.size_guards import SMALLEST_TRACED, Comparison, SizeGuard
from torchkiln_core import DimRange, InternalError, Size
from torchkiln_core.call import OpCall, source_of
from torchkiln_core.size import evaluate, size_of, symbols_of

aten = torch.ops.aten

_TARGETS = frozenset({aten.slice.Tensor, aten.select.int, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims})


@dataclass(frozen=True, slots=True)
class _Slice:
    """``[start:end:step]`` of a dimension of a given extent, with the size of the result that was recorded."""

    extent: Size
    start: Size
    end: Size
    step: int
    result: Size

    @property
    def sizes(self) -> tuple[Size, ...]:
        return self.extent, self.start, self.end, self.result

    def decisions(self, at: Mapping[str, int]) -> Iterator[Comparison]:
        """How the bounds were counted for the sizes ``at``, and which came first."""
        start, decided = _place(self.start, self.extent, at)
        yield from decided
        end, decided = _place(self.end, self.extent, at)
        yield from decided
        yield Comparison(">=" if evaluate(end, at) >= evaluate(start, at) else "<", end, start)

    def is_right(self, sizes: Mapping[str, int], at: Mapping[str, int]) -> bool:
        """Whether what was decided for the sizes ``at`` gives the same elements for others."""
        start, end, extent = (evaluate(size, sizes) for size in (self.start, self.end, self.extent))
        kept = range(extent)[start : end : self.step]
        first = evaluate(_place(self.start, self.extent, at)[0], sizes)
        return len(kept) == evaluate(self.result, sizes) and (not kept or kept[0] == first)


@dataclass(frozen=True, slots=True)
class _Element:
    """Element ``index`` of a dimension of a given extent."""

    extent: Size
    index: Size

    @property
    def sizes(self) -> tuple[Size, ...]:
        return self.extent, self.index

    def decisions(self, at: Mapping[str, int]) -> Iterator[Comparison]:
        """As of a slice."""
        yield from _place(self.index, self.extent, at)[1]

    def is_right(self, sizes: Mapping[str, int], at: Mapping[str, int]) -> bool:
        """As of a slice; eager PyTorch refuses an index that is out of range, whatever the engine would read."""
        extent, index = evaluate(self.extent, sizes), evaluate(self.index, sizes)
        return not -extent <= index < extent or index % extent == evaluate(_place(self.index, self.extent, at)[0], sizes)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A dimension that a squeeze leaves."""

    extent: Size

    @property
    def sizes(self) -> tuple[Size, ...]:
        return (self.extent,)

    def decisions(self, at: Mapping[str, int]) -> Iterator[Comparison]:
        """As of a slice."""
        yield Comparison("!=", self.extent, 1)

    def is_right(self, sizes: Mapping[str, int], at: Mapping[str, int]) -> bool:
        """As of a slice."""
        return evaluate(self.extent, sizes) != 1


def small_size_guards(module: torch.fx.GraphModule, dims: Mapping[str, DimRange]) -> tuple[SizeGuard, ...]:
    """What must hold of sizes so that every slice, selected element and squeeze of a graph gives what was traced."""
    at = {name: bounds.opt for name, bounds in dims.items()}
    guards: dict[SizeGuard, None] = {}
    for found in dict.fromkeys(_find(module)):
        symbols = _symbols(found.sizes)
        if not symbols or not symbols <= dims.keys():
            continue
        for point in _untraced(symbols, dims):
            if not _is_right(found, point, at):
                guards |= {SizeGuard((item,)): None for item in found.decisions(at) if not item.holds(point)}
    return tuple(guards)


def squeezed_sizes(module: torch.fx.GraphModule) -> dict[Size, str]:
    """Sizes of dimensions that squeezes leave since they are not 1, with the source line, also of those that nothing reads."""
    return {
        found.extent: source_of(node) or str(node.target)
        for node in module.graph.nodes
        for found in _meaning(node)
        if isinstance(found, _Kept) and _symbols(found.sizes)
    }


def _is_right(found: _Slice | _Element | _Kept, sizes: Mapping[str, int], at: Mapping[str, int]) -> bool:
    try:
        return found.is_right(sizes, at)
    except InternalError:
        return True  # a size that divides by 0: eager PyTorch raises too


def _find(module: torch.fx.GraphModule) -> Iterator[_Slice | _Element | _Kept]:
    for node in module.graph.nodes:
        yield from _meaning(node)


def _meaning(node: torch.fx.Node) -> Iterator[_Slice | _Element | _Kept]:
    if node.target not in _TARGETS:
        return
    arguments = OpCall.from_node(node).arguments
    shape = arguments["self"].meta["val"].shape
    dim = arguments.get("dim", range(len(shape)))
    extents = [size_of(shape[at]) for at in ((dim,) if isinstance(dim, int) else dim) if shape]
    if node.target is aten.slice.Tensor:
        [extent] = extents
        start, end = _size(arguments["start"], 0), _size(arguments["end"], extent)
        yield _Slice(extent, start, end, arguments["step"], size_of(node.meta["val"].shape[dim]))
    elif node.target is aten.select.int:
        [extent] = extents
        yield _Element(extent, _size(arguments["index"], 0))
    else:
        yield from (_Kept(extent) for extent in extents if extent != 1)


def _size(argument: Any, default: Size) -> Size:
    value = argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument
    return default if value is None else size_of(value)


def _symbols(sizes: Iterable[Size]) -> set[str]:
    """Names of the symbols of sizes; none where one of them is known only while the program runs."""
    open_ = [size for size in sizes if not isinstance(size, int)]
    return set() if any(map(free_unbacked_symbols, open_)) else {name for size in open_ for name in symbols_of(size)}


def _place(index: Size, extent: Size, at: Mapping[str, int]) -> tuple[Size, list[Comparison]]:
    """An index counted from the start, in ``[0, extent]``, and the comparisons that decide it for the sizes ``at``."""
    value, limit = evaluate(index, at), evaluate(extent, at)
    if value > limit:
        return extent, [Comparison(">", index, extent)]
    if value >= 0:
        return index, [Comparison(">=", index, 0), Comparison("<=", index, extent)]
    if value >= -limit:
        return _plain(index + extent), [Comparison("<", index, 0), Comparison(">=", index, _plain(-extent))]
    return 0, [Comparison("<", index, _plain(-extent))]


def _plain(size: Any) -> Size:
    return int(size) if isinstance(size, (int, sympy.Integer)) else size


def _untraced(symbols: Iterable[str], dims: Mapping[str, DimRange]) -> Iterator[dict[str, int]]:
    """Sizes with a 0 or a 1 among them that calls may have."""
    names = sorted(symbols)
    choices = [{*range(dims[name].min, min(SMALLEST_TRACED, dims[name].max + 1)), dims[name].opt, dims[name].max} for name in names]
    for values in itertools.product(*map(sorted, choices)):
        if min(values) < SMALLEST_TRACED:
            yield dict(zip(names, values, strict=True))
