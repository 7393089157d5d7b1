"""Tensors of more dimensions than an engine has: neighbouring dimensions are merged where all that is done to them allows it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch._ops import OpOverload
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torchkiln_core.call import OpCall
from torchkiln_lowering.effects import is_shareable, may_be_input, origins, sharers
from torchkiln_lowering.layout import NoLayout, match_layout
from torchkiln_lowering.passes.context import added
from torchkiln_lowering.passes.merging import TRANSPOSES, order_of

_log = logging.getLogger("torchkiln.lowering")
aten = torch.ops.aten

MAX_RANK = 8
"""Dimensions that a tensor of an engine may have."""


def lower_rank(module: torch.fx.GraphModule) -> bool:
    """Computes what passes through more than 8 dimensions on tensors with neighbouring dimensions merged.

    What cannot be merged into 8, and tensors of such ranks that enter or leave the program, keep their form.
    """
    graph = module.graph
    if not any(_is_high(node) for node in graph.nodes):
        return False
    escaping = sharers(graph)
    merger = _Merger(module)
    changed = False
    for node in list(graph.nodes):
        if not is_shareable(node) or not any(_is_high(item) for item in (node, *node.all_input_nodes)):
            continue
        try:
            flat = merger.write(node)
            sizes = None if flat is None or _is_high(node) or _is_shared(node, escaping) else _sizes(node.meta["val"].shape)
            if flat is None or sizes is None:
                continue
            new = match_layout(graph, node, merger.reshaped(flat, sizes), node.meta["val"])
        except (NoLayout, RuntimeError) as reason:
            _log.info("%s (%s) keeps its rank: %s", node.target, node.name, reason)
            continue
        new.meta = {**node.meta, "val": new.meta["val"]}
        node.replace_all_uses_with(new)
        graph.erase_node(node)
        changed = True
    merger.erase_unread()
    return changed


class _Merger:
    """Writes calls on merged dimensions. What stands for a value has its elements in the same order, in any shape."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self._module = module
        self._anchor = module.graph.output_node()
        self._flat: dict[torch.fx.Node, torch.fx.Node] = {}
        self._made: dict[torch.fx.Node, None] = {}

    def write(self, node: torch.fx.Node) -> torch.fx.Node | None:
        """What stands for a call's result, or ``None`` where its dimensions cannot be merged."""
        self._anchor = node
        call = OpCall.from_node(node)
        rule = _RULES.get(node.target) or (_pointwise if _is_pointwise(node) else None)
        flat = None if rule is None else rule(self, call)
        if flat is not None and _is_high(node):
            self._flat[node] = flat
        return flat

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> torch.fx.Node:
        """Adds a call."""
        node = added(self._module, self._anchor, target, args, **kwargs)
        self._made[node] = None
        return node

    def call_by_name(self, target: Any, arguments: Mapping[str, Any]) -> torch.fx.Node:
        """Adds a call whose arguments have the names of the operator's schema."""
        named = {item.name for item in target._schema.arguments if item.kwarg_only}
        args = [value for name, value in arguments.items() if name not in named]
        return self.call(target, *args, **{name: value for name, value in arguments.items() if name in named})

    def knows(self, node: Any) -> bool:
        """Whether a value is at hand with at most 8 dimensions."""
        return node in self._flat or not _is_high(node)

    def reshaped(self, value: torch.fx.Node, sizes: Sequence[int]) -> torch.fx.Node:
        """What stands for a value, in a shape with at most one ``-1``."""
        flat = self._flat.get(value, value)
        if flat in self._made and flat.target is aten.reshape.default:
            flat = flat.args[0]  # type: ignore[assignment]
        return self.call(aten.reshape.default, flat, list(sizes))

    def flat(self, value: torch.fx.Node) -> torch.fx.Node:
        """What stands for a value; one that has more than 8 dimensions where it is read becomes a row."""
        if value not in self._flat and _is_high(value):
            self._flat[value] = self.reshaped(value, [-1])
        return self._flat.get(value, value)

    def erase_unread(self) -> None:
        """Takes out what nothing reads."""
        for node in reversed(self._made):
            if not node.users:
                self._module.graph.erase_node(node)


def _is_shared(node: torch.fx.Node, escaping: Mapping[torch.fx.Node, int]) -> bool:
    """Whether a returned view may be one of an input or of another result: then it stays exactly as it is."""
    mine = escaping.get(node, 0)
    return bool(mine) and (may_be_input(node) or any(escaping.get(item, 0) & ~mine for item in origins(node)))


def _reshaped(merger: _Merger, call: OpCall) -> torch.fx.Node | None:
    """Elements keep their order. Of a value that is not at hand, a view would be all that is won."""
    source = next(iter(call.arguments.values()))
    return merger.flat(source) if merger.knows(source) else None


def _copied(merger: _Merger, call: OpCall) -> torch.fx.Node | None:
    """A layout that follows the argument's is told by nothing here; what reads the result gets the one that it was traced with."""
    source = call.arguments["self"]
    if not merger.knows(source):
        return None
    return merger.call(call.target, merger.flat(source), **{key: item for key, item in call.node.kwargs.items() if key != "memory_format"})


def _permuted(merger: _Merger, call: OpCall) -> torch.fx.Node | None:
    source = call.arguments["self"]
    shape, order = source.meta["val"].shape, order_of(call.node)
    moving = [dim for dim in order if not statically_known_true(shape[dim] == 1)]
    # Dimensions that stand side by side before and after move as one; those of size 1 go along with any.
    runs: list[list[int]] = []
    kept = sorted(moving)
    for dim in moving:
        if runs and kept.index(dim) == kept.index(runs[-1][-1]) + 1:
            runs[-1].append(dim)
        else:
            runs.append([dim])
    places = sorted(runs)
    sizes = _sizes([math.prod(shape[dim] for dim in run) for run in places])
    if sizes is None or len(runs) > MAX_RANK:
        return None
    return merger.call(aten.permute.default, merger.reshaped(merger.flat(source), sizes), [places.index(run) for run in runs])


def _pointwise(merger: _Merger, call: OpCall) -> torch.fx.Node | None:
    """Tensors of one or more dimensions broadcast; those without stay so, since they count otherwise for the dtype."""
    shape = call.node.meta["val"].shape
    tensors = [item for item in call.node.all_input_nodes if item.meta["val"].dim()]
    if any(isinstance(item, (list, tuple)) for item in call.arguments.values()):
        return None
    shapes = _grouped(shape, [item.meta["val"].shape for item in tensors])
    if shapes is None:
        return None
    fitted = {item: merger.reshaped(merger.flat(item), sizes) for item, sizes in zip(tensors, shapes, strict=True)}
    args, kwargs = torch.fx.node.map_arg((call.node.args, call.node.kwargs), lambda item: fitted.get(item, item))
    return merger.call(call.target, *args, **{key: item for key, item in kwargs.items() if key != "memory_format"})


def _expanded(merger: _Merger, call: OpCall) -> torch.fx.Node | None:
    source, shape = call.arguments["self"], call.node.meta["val"].shape
    shapes = _grouped(shape, [source.meta["val"].shape, shape])
    # A size that is spread over has to be a number or a size of one dimension, which -1 would not name.
    if shapes is None or any(after < 0 and before > 0 for before, after in zip(*shapes, strict=True)):
        return None
    return merger.call(aten.expand.default, merger.reshaped(merger.flat(source), shapes[0]), list(shapes[1]))


def _along(merger: _Merger, call: OpCall) -> torch.fx.Node | None:
    """A call along one dimension: those before it are one, and those after it."""
    source = call.arguments["self"]
    around = _around(source.meta["val"].shape, call.arguments["dim"])
    if around is None:
        return None
    arguments = {**call.arguments, "self": merger.reshaped(merger.flat(source), around), "dim": 1}
    return merger.call_by_name(call.target, arguments)


def _joined(merger: _Merger, call: OpCall) -> torch.fx.Node | None:
    tensors = call.arguments["tensors"]
    shapes = [_around(item.meta["val"].shape, call.arguments["dim"]) for item in tensors]
    if any(shape is None for shape in shapes):
        return None
    parts = [merger.reshaped(merger.flat(item), shape) for item, shape in zip(tensors, shapes, strict=True) if shape is not None]
    return merger.call(aten.cat.default, parts, 1)


def _reduced(merger: _Merger, call: OpCall) -> torch.fx.Node | None:
    source = call.arguments["self"]
    shape = source.meta["val"].shape
    dims = {int(dim) % len(shape) for dim in call.arguments["dim"] or range(len(shape))}
    groups: list[tuple[bool, Any]] = []
    for dim, size in enumerate(shape):
        if groups and groups[-1][0] == (dim in dims):
            groups[-1] = (dim in dims, groups[-1][1] * size)
        else:
            groups.append((dim in dims, size))
    sizes = _sizes([size for _, size in groups])
    if sizes is None or len(sizes) > MAX_RANK:
        return None
    arguments = {**call.arguments, "self": merger.reshaped(merger.flat(source), sizes), "keepdim": False}
    arguments["dim"] = [index for index, (is_reduced, _) in enumerate(groups) if is_reduced]
    return merger.call_by_name(call.target, arguments)


_Rule = Callable[[_Merger, OpCall], torch.fx.Node | None]
_RULES: dict[Any, _Rule] = {
    **dict.fromkeys(TRANSPOSES, _permuted),
    **dict.fromkeys((aten.clone.default, aten._to_copy.default, aten.contiguous.default), _copied),
    **dict.fromkeys(
        (
            aten.view.default,
            aten.reshape.default,
            aten._unsafe_view.default,
            aten.flatten.using_ints,
            aten.unflatten.int,
            aten.unsqueeze.default,
            aten.squeeze.default,
            aten.squeeze.dim,
            aten.squeeze.dims,
            aten.alias.default,
            aten.detach.default,
        ),
        _reshaped,
    ),
    aten.expand.default: _expanded,
    **dict.fromkeys(
        (
            aten.slice.Tensor,
            aten.select.int,
            aten.index_select.default,
            aten.cumsum.default,
            aten._softmax.default,
            aten._log_softmax.default,
            aten.softmax.int,
        ),
        _along,
    ),
    aten.cat.default: _joined,
    **dict.fromkeys((aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default, aten.var.correction), _reduced),
}


def _is_high(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dim() > MAX_RANK


def _is_pointwise(node: torch.fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and torch.Tag.pointwise in node.target.tags and isinstance(node.meta["val"], torch.Tensor)


def _sizes(shape: Sequence[Any]) -> list[int] | None:
    """A shape as a reshape takes it: one symbolic size is left to it, more than one is too many."""
    sizes = [size if isinstance(size, int) else -1 for size in shape]
    return sizes if sizes.count(-1) <= 1 and not (-1 in sizes and 0 in sizes) else None


def _around(shape: Sequence[Any], dim: Any) -> list[int] | None:
    place = int(dim) % len(shape)
    return _sizes([math.prod(shape[:place]), shape[place], math.prod(shape[place + 1 :])])


def _grouped(shape: Sequence[Any], shapes: Sequence[Sequence[Any]]) -> list[list[int]] | None:
    """Shapes that broadcast to ``shape``, each with those neighbouring dimensions merged in which all of them broadcast alike."""
    wide = [[*[1] * (len(shape) - len(item)), *item] for item in shapes]
    groups: list[tuple[tuple[bool, ...], list[Any]]] = []
    for dim, size in enumerate(shape):
        if statically_known_true(size == 1):
            continue
        spread = tuple(statically_known_true(item[dim] == 1) for item in wide)
        if not all(one or statically_known_true(item[dim] == size) for one, item in zip(spread, wide, strict=True)):
            return None
        if groups and groups[-1][0] == spread:
            groups[-1][1].append(size)
        else:
            groups.append((spread, [size]))
    groups = groups or [((False,) * len(wide), [1])]
    merged = [_sizes([1 if spread[index] else math.prod(sizes) for spread, sizes in groups]) for index in range(len(wide))]
    return None if len(groups) > MAX_RANK or any(item is None for item in merged) else [item for item in merged if item is not None]
