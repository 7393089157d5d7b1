"""Rotary embedding as written by hand, as the one operator that has a layer of TensorRT's own."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torchkiln_core.call import OpCall
from torchkiln_lowering.effects import ROTARY
from torchkiln_lowering.metadata import TRACED, fake_mode_of, known_equal
from torchkiln_lowering.passes.context import added, is_accepted, replaced
from torchkiln_lowering.passes.merging import RESHAPES
from torchkiln_lowering.passes.products import is_call, plus
from torchkiln_lowering.passes.repetition import Same, repeats
from torchkiln_lowering.passes.statistics import other_operand
from torchkiln_lowering.trace import without_new_guards

aten = torch.ops.aten


def raise_rotary_embedding(module: torch.fx.GraphModule) -> bool:
    """``x * cos + turned(x) * sin`` in fp32, with halves or neighbours of the last dimension as pairs, as ``onnx.RotaryEmbedding``.

    ``x`` is ``[B, N, S, D]`` or ``[B, S, N, D]``. The tables must be the same for all heads, and known to hold each angle twice: the
    operator reads it once. Half dtypes stay as written: eager rounds both products and their sum, the layer of TensorRT once.
    """
    tables = _Tables(module)
    changed = False
    for total in module.graph.find_nodes(op="call_function", target=aten.add.Tensor):
        found = _match(total)
        if found is not None and all(tables.repeat(table, found.pairs) for table in (found.cosine, found.sine)):
            changed = _raise(module, found, tables) or changed
    tables.erase_unread()
    return changed


@dataclass(frozen=True, slots=True)
class _Found:
    """``x * cosine + turned(x) * sine``, which is the call ``total``."""

    x: torch.fx.Node
    cosine: torch.fx.Node
    sine: torch.fx.Node
    pairs: Same
    heads: int
    """The dimension of the heads, 1 or 2."""
    total: torch.fx.Node


def _match(total: torch.fx.Node) -> _Found | None:
    value = total.meta["val"]
    terms = plus(total)
    if terms is None or value.dim() != 4 or not _has_pairs(value) or not all(is_call(term, aten.mul.Tensor) for term in terms):
        return None
    for straight, across in (terms, terms[::-1]):
        for turned, sine in (across.args, across.args[::-1]):
            x, pairs = _turned(turned, value) or (None, Same.HALVES)
            cosine = other_operand(straight, x) if x is not None and x in straight.args else None
            if x is None or cosine is None or not isinstance(sine, torch.fx.Node):
                continue
            heads = next((dim for dim in (1, 2) if all(_is_table(table, value, dim) for table in (cosine, sine))), None)
            if heads is not None and _is_fp32(x) and known_equal(x.meta["val"].shape, value.shape):
                return _Found(x, cosine, sine, pairs, heads, total)
    return None


def _has_pairs(value: torch.Tensor) -> bool:
    width: Any = value.shape[-1]
    return isinstance(width, int) and width > 0 and width % 2 == 0


def _is_fp32(node: torch.fx.Node) -> bool:
    value = node.meta["val"]
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32


def _is_table(node: torch.fx.Node, x: torch.Tensor, heads: int) -> bool:
    """Whether a node is fp32 and broadcasts to ``x`` along the heads, from its last dimension on."""
    if not _is_fp32(node) or not 1 <= node.meta["val"].dim() <= 4:
        return False
    sizes = [*[1] * (4 - node.meta["val"].dim()), *node.meta["val"].shape]
    fits = [statically_known_true(have == want) for have, want in zip(sizes, x.shape, strict=True)]
    single = [statically_known_true(size == 1) for size in sizes]
    return fits[3] and single[heads] and all(fits[dim] or single[dim] for dim in (0, 1, 2))


def _turned(node: Any, x: torch.Tensor) -> tuple[torch.fx.Node, Same] | None:
    """What a value is made of by giving ``(-b, a)`` for each pair ``(a, b)`` of features, and which features are a pair."""
    joined = _joined(node)
    if joined is None:
        return None
    (negated, second), pairs = joined
    first = _part(negated.args[0]) if is_call(negated, aten.neg.default) else None
    other, width = _part(second), x.shape[-1]
    low, high = ((0, width // 2, 1), (width // 2, width, 1)) if pairs is Same.HALVES else ((0, width, 2), (1, width, 2))
    if first is None or other is None or first[0] is not other[0] or (other[1], first[1]) != (low, high):
        return None
    return (other[0], pairs) if known_equal(node.meta["val"].shape, x.shape) else None


def _joined(node: Any) -> tuple[list[Any], Same] | None:
    """Two values that are the halves, or every other feature, of a third."""
    if is_call(node, aten.cat.default) and _is_last(node):
        parts = list(OpCall.from_node(node).arguments["tensors"])
        return (parts, Same.HALVES) if len(parts) == 2 else None
    inner: Any = node.args[0] if is_call(node, *RESHAPES) else None
    if not is_call(inner, aten.stack.default, aten.cat.default):
        return None
    arguments = OpCall.from_node(inner).arguments
    parts, rank = list(arguments["tensors"]), inner.meta["val"].dim()
    if inner.target is aten.cat.default:
        parts = [part.args[0] for part in parts if is_call(part, aten.unsqueeze.default) and _is_last(part)]
    dim = int(arguments["dim"]) % rank
    return (parts, Same.NEIGHBOURS) if len(parts) == 2 and rank == 5 and dim == 4 else None


def _is_last(node: torch.fx.Node) -> bool:
    """Whether the dimension of a call is the last one of its result."""
    rank = node.meta["val"].dim()
    return bool(int(OpCall.from_node(node).arguments["dim"]) % rank == rank - 1)


def _part(node: Any) -> tuple[torch.fx.Node, tuple[int, int, int]] | None:
    """What a value is a part of in the last dimension: from where, to where and in which steps."""
    if is_call(node, aten.slice.Tensor):
        arguments = OpCall.from_node(node).arguments
        source, width = arguments["self"], node.args[0].meta["val"].shape[-1]
        limits = slice(arguments["start"], arguments["end"], arguments["step"])
        static = isinstance(width, int) and not any(isinstance(item, torch.fx.Node) for item in (limits.start, limits.stop, limits.step))
        return (source, limits.indices(width)) if static and _is_last(node) else None
    if not is_call(node, operator.getitem) or not is_call(node.args[0], aten.split.Tensor, aten.split_with_sizes.default):
        return None
    pieces, index = node.args[0], int(node.args[1])
    arguments = OpCall.from_node(pieces).arguments
    source, sizes = arguments["self"], [piece.shape[-1] for piece in pieces.meta["val"][: index + 1]]
    rank = source.meta["val"].dim()
    if int(arguments["dim"]) % rank != rank - 1 or not all(isinstance(size, int) for size in sizes):
        return None
    return source, (sum(sizes[:index]), sum(sizes), 1)


def _raise(module: torch.fx.GraphModule, found: _Found, tables: _Tables) -> bool:
    cosine, sine = (tables.half(table, found) for table in (found.cosine, found.sine))
    apart = found.x if found.heads == 1 else tables.call(found, aten.transpose.int, found.x, 1, 2)
    new = tables.call(found, ROTARY, apart, cosine, sine, interleaved=found.pairs is Same.NEIGHBOURS)
    mode = fake_mode_of(module.graph)
    if mode is not None:
        # So the kernel lays its result out, whatever torch 2.11 says of it.
        with without_new_guards(mode):
            fake = torch.empty_permuted(new.meta["val"].shape, (0, 2, 1, 3), device=new.meta["val"].device)
        new.meta = {**found.total.meta, "val": fake, TRACED: fake}
    if not is_accepted(module, new):
        return False
    return replaced(module, found.total, new if found.heads == 1 else tables.call(found, aten.transpose.int, new, 1, 2))


class _Tables:
    """The tables of a module, each angle once: one for all layers that read it."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self._module = module
        self._repeat: dict[tuple[torch.fx.Node, Same], bool] = {}
        self._halves: dict[tuple[torch.fx.Node, Same, int], list[torch.fx.Node]] = {}
        self._made: list[torch.fx.Node] = []

    def call(self, found: _Found, target: Callable[..., Any], *args: Any, **kwargs: Any) -> torch.fx.Node:
        """A new call in front of what was found."""
        self._made.append(added(self._module, found.total, target, args, **kwargs))
        return self._made[-1]

    def erase_unread(self) -> None:
        """Erases what was made for calls that no converter takes."""
        alive = set(self._module.graph.nodes) if self._made else set()
        for node in reversed(self._made):
            if node in alive and not node.users:
                self._module.graph.erase_node(node)

    def repeat(self, table: torch.fx.Node, pairs: Same) -> bool:
        """Whether a table is known to hold each angle twice."""
        key = table, pairs
        if key not in self._repeat:
            self._repeat[key] = repeats(self._module, table, pairs)
        return self._repeat[key]

    def half(self, table: torch.fx.Node, found: _Found) -> torch.fx.Node:
        """``[B, S, D / 2]`` of a table. Calls come in the order of the graph, so what one made stands in front of the next."""
        shape = found.x.meta["val"].shape
        wanted = (shape[0], shape[3 - found.heads], shape[3] // 2)
        halves = self._halves.setdefault((table, found.pairs, found.heads), [])
        for half in halves:
            if known_equal(half.meta["val"].shape, wanted):
                return half
        halves.append(self._write(table, found, wanted))
        return halves[-1]

    def _write(self, table: torch.fx.Node, found: _Found, wanted: tuple[Any, ...]) -> torch.fx.Node:
        rank = table.meta["val"].dim()
        cut = (0, wanted[-1], 1) if found.pairs is Same.HALVES else (0, sys.maxsize, 2)
        half = self.call(found, aten.slice.Tensor, table, rank - 1, *cut)
        heads = found.heads - 4 + rank
        if heads >= 0:
            half = self.call(found, aten.squeeze.dim, half, heads)
        if known_equal(half.meta["val"].shape, wanted):
            return half
        places = zip(wanted, (0, 3 - found.heads, 3), strict=True)
        sizes = [size if isinstance(size, int) else self.call(found, aten.sym_size.int, found.x, dim) for size, dim in places]
        return self.call(found, aten.expand.default, half, sizes)
