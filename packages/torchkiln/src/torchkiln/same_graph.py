"""Whether a model exported for some sizes of 0 and 1 gives the graph that it gives for all others."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from typing import Any

import sympy
import torch
import torch.fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from torchkiln.written_memory import WrittenMemory, writes
from torchkiln_core import ExportError
from torchkiln_core.call import OpCall
from torchkiln_core.size import linear, sizes_of
from torchkiln_partitioning import SIZE_READERS

aten = torch.ops.aten

_COPIES = frozenset({aten.contiguous.default, aten.clone.default})
"""Whether a model copies may depend on strides, which small sizes make contiguous."""
_VIEWS = frozenset({aten.alias.default, aten.slice.Tensor, aten.expand.default})
"""Whether a model calls them may depend on sizes: ``x[:n]`` of ``n`` rows is ``x``, and so is its expansion to its own shape."""
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def paired_symbols(general: ExportedProgram, special: ExportedProgram) -> dict[sympy.Symbol, sympy.Symbol]:
    """The symbols of a program for all sizes by those of one for small ones: torch names the sizes of each export anew.

    Raises:
        ExportError: The inputs do not tell which symbols are the same.
    """
    found: dict[sympy.Symbol, sympy.Symbol] = {}
    symbols: set[sympy.Symbol] = set()
    for ours, theirs in zip(*(program.graph.find_nodes(op="placeholder") for program in (general, special)), strict=False):
        values = [node.meta.get("val") for node in (ours, theirs)]
        shapes = [sizes_of(value.shape) if isinstance(value, torch.Tensor) else () for value in values]
        for our_size, their_size in zip(*shapes, strict=False):
            if isinstance(their_size, int):
                continue
            symbols |= their_size.free_symbols
            our_line, their_line = linear(our_size), linear(their_size)
            if isinstance(our_size, int) or our_line is None or their_line is None or our_line[:2] != their_line[:2]:
                continue
            [our_symbol], [their_symbol] = our_size.free_symbols, their_size.free_symbols
            if found.setdefault(their_symbol, our_symbol) != our_symbol:
                raise ExportError(f"size {their_symbol} is {found[their_symbol]} and {our_symbol} for all sizes")
    if symbols - found.keys() or len({*found.values()}) < len(found):
        raise ExportError("other sizes are independent than for all sizes")
    return found


def difference(
    general: ExportedProgram, special: ExportedProgram, small: Mapping[str, int], paired: Mapping[sympy.Symbol, sympy.Symbol]
) -> str | None:
    """What differs between a program for all sizes and one for small ones, at these sizes; ``None`` where both compute the same.

    Args:
        general: The program for all sizes.
        special: The program in which the small sizes are numbers.
        small: These sizes, by symbol of the program for all.
        paired: The other symbols of that one, by those of the special one.
    """
    ours, theirs = general.graph_signature, special.graph_signature
    if [(spec.kind, spec.target) for spec in ours.input_specs] != [(spec.kind, spec.target) for spec in theirs.input_specs]:
        return "other inputs, weights or constants"
    if [(spec.kind, spec.target) for spec in ours.output_specs] != [(spec.kind, spec.target) for spec in theirs.output_specs]:
        return "other results or mutations"
    if general.call_spec.out_spec != special.call_spec.out_spec:
        return "results of another structure"
    held, others = ({**program.constants, **program.state_dict} for program in (general, special))
    for spec in ours.input_specs:
        if spec.target is not None and not _same_constant(held.get(spec.target), others.get(spec.target)):
            return f"another {spec.target}"
    ours_at, theirs_at = (
        {name: sympy.Integer(size) for name, size in small.items()},
        {symbol.name: ours for symbol, ours in paired.items()},
    )
    return _difference(_Reader(ours_at), _Reader(theirs_at), general.graph_module, special.graph_module)


def _same_constant(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if not all(isinstance(item, torch.Tensor) and not isinstance(item, FakeTensor) for item in (one, other)):
        return False
    if one.dtype != other.dtype or one.device != other.device:
        return False
    # By sign too, for -0.0 is equal to 0.0.
    return torch.equal(one, other) and (not one.is_floating_point() or torch.equal(one.signbit(), other.signbit()))


def _difference(ours_at: _Reader, theirs_at: _Reader, general: torch.fx.GraphModule, special: torch.fx.GraphModule) -> str | None:
    """The first difference between two graphs."""
    our_memory, their_memory = WrittenMemory(general.graph), WrittenMemory(special.graph)
    our_calls, our_sources = ours_at.calls(general.graph, our_memory)
    their_calls, their_sources = theirs_at.calls(special.graph, their_memory)
    partner: dict[torch.fx.Node, torch.fx.Node] = {}
    for ours, theirs in itertools.zip_longest(our_calls, their_calls):
        if ours is None or theirs is None:
            return f"one has {(ours or theirs).format_node()} more"
        our_module, their_module = (_attribute(module, node) for module, node in ((general, ours), (special, theirs)))
        if isinstance(our_module, torch.fx.GraphModule) and isinstance(their_module, torch.fx.GraphModule):
            same = _difference(ours_at, theirs_at, our_module, their_module) is None
        elif our_module is not None and their_module is not None:
            same = _same_constant(our_module, their_module)
        else:
            same = _same_target(ours, theirs)
            same = same and ours_at.value(ours.meta.get("val")) == theirs_at.value(theirs.meta.get("val"))
            same = same and ours_at.arguments(ours, our_sources, partner) == theirs_at.arguments(theirs, their_sources, {})
        if our_memory.holds(ours) or their_memory.holds(theirs):
            # What is written to one is seen in the other.
            same = same and _shares(ours) == _shares(theirs)
        if not same:
            return f"{ours.format_node()} for all sizes is {theirs.format_node()} for these"
        partner[ours] = theirs
    return None


def _same_target(ours: torch.fx.Node, theirs: torch.fx.Node) -> bool:
    return ours.op == theirs.op and (ours.op != "call_function" or ours.target == theirs.target)


class _Reader:
    """Reads graphs with what stands for each symbol: a number, or a symbol of another program."""

    def __init__(self, known: Mapping[str, sympy.Basic]) -> None:
        self._known = known

    def calls(self, graph: torch.fx.Graph, memory: WrittenMemory) -> tuple[list[torch.fx.Node], dict[torch.fx.Node, torch.fx.Node]]:
        """What a graph computes, without sizes, checks and what nothing needs; and the nodes that are others once more, with these."""
        needed: set[torch.fx.Node] = set()
        for node in reversed(graph.nodes):
            if node.op in ("placeholder", "output") or node in needed or writes(node):
                needed.add(node)
                needed.update(node.all_input_nodes)
        sources: dict[torch.fx.Node, torch.fx.Node] = {}
        for node in graph.nodes:
            if node.target not in _COPIES | _VIEWS:
                continue
            source = OpCall.from_node(node).arguments["self"]
            is_same = self._is_its_argument(node) if node.target in _VIEWS else not (memory.holds(node) or memory.holds(source))
            if is_same:
                sources[node] = sources.get(source, source)
        left_out = (node for node in graph.nodes if node not in needed or _is_size(node))
        skipped = sources.keys() | left_out
        return [node for node in graph.nodes if node.op == "placeholder" or node not in skipped], sources

    def _is_its_argument(self, node: torch.fx.Node) -> bool:
        """Whether a view shows all of its argument, as it is."""
        shape, own = self._shape(node, "self"), [self._size(size) for size in node.meta["val"].shape]
        return shape == own and (
            node.target is not aten.slice.Tensor or self._plain_slice(node, OpCall.from_node(node).arguments)["step"] == 1
        )

    def arguments(
        self, node: torch.fx.Node, sources: Mapping[torch.fx.Node, torch.fx.Node], partner: Mapping[torch.fx.Node, torch.fx.Node]
    ) -> Any:
        """Arguments with the numbers that sizes are, and nodes that have a partner as that; equal where they mean the same."""

        def item(leaf: Any) -> Any:
            if not isinstance(leaf, torch.fx.Node):
                return self._size(leaf)
            if _is_size(leaf):
                return self._size(leaf.meta["val"])
            leaf = sources.get(leaf, leaf)
            return partner.get(leaf, leaf)

        if not isinstance(node.target, OpOverload):
            return _written(torch.fx.node.map_aggregate((node.args, node.kwargs), item))
        arguments = {name: torch.fx.node.map_aggregate(argument, item) for name, argument in OpCall.from_node(node).arguments.items()}
        if node.target is aten.slice.Tensor:
            arguments = self._plain_slice(node, arguments)
        elif node.target is aten.scaled_dot_product_attention.default and self._is_one_by_one(node):
            arguments["is_causal"] = False
        return _written(arguments)

    def _plain_slice(self, node: torch.fx.Node, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """With bounds within the dimension: ``x[:n]`` of ``n`` rows is ``x[0:n]``."""
        extent = self._shape(node, "self")[arguments["dim"]]
        start = 0 if arguments["start"] is None else arguments["start"]
        end = extent if arguments["end"] is None else arguments["end"]
        if all(isinstance(size, int) for size in (extent, start, end)):
            start, end, _ = slice(start, end).indices(extent)
        return {**arguments, "start": start, "end": end}

    def _is_one_by_one(self, node: torch.fx.Node) -> bool:
        """Whether an attention has no more than one query and one key: a causal mask then hides nothing."""
        return all(isinstance(length, int) and length <= 1 for length in (self._shape(node, name)[-2] for name in ("query", "key")))

    def _shape(self, node: torch.fx.Node, name: str) -> list[Any]:
        return [self._size(size) for size in OpCall.from_node(node).arguments[name].meta["val"].shape]

    def value(self, value: Any) -> Any:
        """Dtypes, devices and shapes of what a call gives."""
        return _written(pytree.tree_map(self._described, value))

    def _described(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.dtype, leaf.device, leaf.layout, tuple(map(self._size, leaf.shape))
        return self._size(leaf)

    def _size(self, leaf: Any) -> Any:
        if not isinstance(leaf, _SYMBOLIC):
            return leaf
        expression = sympy.sympify(leaf.node.expr)
        known = {symbol: self._known[symbol.name] for symbol in expression.free_symbols if symbol.name in self._known}
        try:
            value = expression.xreplace(known)
        except ZeroDivisionError:
            return expression  # no number, and so equal to none
        if value.is_Integer and isinstance(leaf, torch.SymInt):
            return int(value)
        if value in (sympy.true, sympy.false):
            return bool(value)
        return value


def _written(value: Any) -> Any:
    """Comparable by ``==`` without taking ``True`` for 1, or 1 for 1.0, and with NaN equal to itself."""
    if isinstance(value, (list, tuple)):
        return [_written(item) for item in value]
    if isinstance(value, dict):
        return {key: _written(item) for key, item in value.items()}
    if isinstance(value, slice):
        return ["slice", _written(value.start), _written(value.stop), _written(value.step)]
    if isinstance(value, float):
        return float, value.hex()
    return type(value), value


def _is_size(node: torch.fx.Node) -> bool:
    """Whether a node is a number that shapes alone decide, or a formula of numbers: not one that is read from a tensor."""
    if node.op == "placeholder" or not isinstance(node.meta.get("val"), (*_SYMBOLIC, int, float)):
        return False
    return node.target in SIZE_READERS or not any(isinstance(item.meta.get("val"), torch.Tensor) for item in node.all_input_nodes)


def _shares(node: torch.fx.Node) -> list[bool]:
    """For each tensor that a call takes, whether its result lies in the memory of it."""
    result, *taken = (item.meta.get("val") for item in (node, *node.all_input_nodes))
    if not isinstance(result, torch.Tensor):
        return []
    return [value.untyped_storage()._cdata == result.untyped_storage()._cdata for value in taken if isinstance(value, torch.Tensor)]


def _attribute(module: torch.nn.Module, node: torch.fx.Node) -> Any:
    """What a ``get_attr`` node reads; ``None`` for others."""
    return functools.reduce(getattr, str(node.target).split("."), module) if node.op == "get_attr" else None
