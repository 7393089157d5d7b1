"""Complex numbers as pairs of real ones, in the form of ``view_as_real``: TensorRT has no complex dtype."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from torchkiln_core.call import OpCall
from torchkiln_lowering.effects import may_be_input, sharers
from torchkiln_lowering.metadata import known_equal
from torchkiln_lowering.passes.context import added

_log = logging.getLogger("torchkiln.lowering")
aten = torch.ops.aten
_PAIRED = frozenset({torch.complex64, torch.complex128})
"""Of complex numbers of half dtypes torch computes next to nothing."""

Build = Callable[..., torch.fx.Node]
"""Adds a call to the graph, in front of the one that is rewritten."""


def split_complex(module: torch.fx.GraphModule) -> bool:
    """Computes real results of complex calls on pairs ``[*, 2]``; rotary embeddings written with complex products become real ones.

    What has no such form (``torch.fft``, complex results of the program) stays complex and is viewed as real where it is read.
    """
    graph = module.graph
    if not any(_is_complex(node) for node in graph.nodes):
        return False
    escaping = sharers(graph)
    splitter = _Splitter(module)
    changed = False
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        try:
            if _is_complex(node):
                splitter.split(node)
            elif node.target in _EXITS and _is_complex(node.args[0]) and not (node in escaping and may_be_input(node)):
                new = splitter.leave(node)
                node.replace_all_uses_with(new)
                graph.erase_node(node)
                changed = True
        except RuntimeError as reason:
            _log.info("%s (%s) stays complex: its calls on pairs cannot be traced: %s", node.target, node.name, reason)
    splitter.erase_unread()
    return changed


class _Splitter:
    """Writes calls on pairs."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self._module = module
        self._anchor = module.graph.output_node()
        self._pairs: dict[torch.fx.Node, torch.fx.Node] = {}
        self._made: list[torch.fx.Node] = []

    def split(self, node: torch.fx.Node) -> None:
        """Writes a complex call on pairs, where it has such a form."""
        self._anchor = node
        pair = self._pair(node)
        if pair is not None:
            self._pairs[node] = pair

    def leave(self, node: torch.fx.Node) -> torch.fx.Node:
        """A call that gives real numbers, on the pairs of what it reads."""
        self._anchor = node
        new = _EXITS[node.target](self.call, self.read(node.args[0]))
        new.meta = {**node.meta, **new.meta}
        return new

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> torch.fx.Node:
        """Adds a call."""
        node = added(self._module, self._anchor, target, args, **kwargs)
        self._made.append(node)
        return node

    def erase_unread(self) -> None:
        """Takes out what nothing reads."""
        for node in reversed(self._made):
            if not node.users:
                self._module.graph.erase_node(node)

    def read(self, value: Any) -> torch.fx.Node:
        """The pairs of a complex value; a value without them is viewed as real."""
        if value not in self._pairs:
            resolved = self.call(aten.resolve_conj.default, value) if value.meta["val"].is_conj() else value
            self._pairs[value] = self.call(aten.view_as_real.default, resolved)
        return self._pairs[value]

    def _pair(self, node: torch.fx.Node) -> torch.fx.Node | None:
        """The call on pairs, or ``None`` where it has no such form."""
        rule = _RULES.get(node.target)  # type: ignore[arg-type]
        if rule is None or any(item.meta["val"].dtype not in _PAIRED for item in (node, *node.all_input_nodes) if _is_complex(item)):
            return None
        return rule(self, OpCall.from_node(node))

    def part(self, pair: torch.fx.Node, index: int) -> torch.fx.Node:
        """Real (0) or imaginary (1) parts."""
        return self.call(aten.select.int, pair, -1, index)

    def join(self, real: torch.fx.Node, imaginary: torch.fx.Node) -> torch.fx.Node:
        """Pairs from their parts."""
        return self.call(aten.stack.default, [real, imaginary], -1)


def _complex(splitter: _Splitter, call: OpCall) -> torch.fx.Node | None:
    """The parts have sizes of their own, of which the pairs have the common ones."""
    parts = call.arguments["real"], call.arguments["imag"]
    shape = call.node.meta["val"].shape
    if not all(known_equal(part.meta["val"].shape, shape) for part in parts):
        sizes = [_size(splitter, parts, shape, dim) for dim in range(-len(shape), 0)]
        if None in sizes:
            return None
        parts = splitter.call(aten.expand.default, parts[0], sizes), splitter.call(aten.expand.default, parts[1], sizes)
    return splitter.join(*parts)


def _size(splitter: _Splitter, parts: Sequence[torch.fx.Node], shape: Sequence[Any], dim: int) -> Any:
    """A size of a common shape, read from a part that has it; ``dim`` counts from the end. ``None`` where none is known to."""
    if isinstance(shape[dim], int):
        return shape[dim]
    for part in parts:
        sizes = part.meta["val"].shape
        if len(sizes) >= -dim and known_equal([sizes[dim]], [shape[dim]]):
            return splitter.call(aten.sym_size.int, part, len(sizes) + dim)
    return None


def _product(splitter: _Splitter, call: OpCall) -> torch.fx.Node | None:
    left, right = call.arguments["self"], call.arguments["other"]
    if not _is_complex(left) and isinstance(left, torch.fx.Node):
        left, right = right, left
    if isinstance(right, complex) or not isinstance(left, torch.fx.Node):
        return None
    if not _is_complex(right):
        return _scaled(splitter, call, left, right)
    (a, b), (c, d) = ([splitter.part(splitter.read(item), index) for index in (0, 1)] for item in (left, right))
    times, minus, plus = aten.mul.Tensor, aten.sub.Tensor, aten.add.Tensor
    real = splitter.call(minus, splitter.call(times, a, c), splitter.call(times, b, d))
    return splitter.join(real, splitter.call(plus, splitter.call(times, a, d), splitter.call(times, b, c)))


def _quotient(splitter: _Splitter, call: OpCall) -> torch.fx.Node | None:
    left, right = call.arguments["self"], call.arguments["other"]
    if not _is_complex(left) or _is_complex(right) or isinstance(right, complex):
        return None
    return _scaled(splitter, call, left, right)


def _scaled(splitter: _Splitter, call: OpCall, left: torch.fx.Node, right: Any) -> torch.fx.Node:
    pair = _operand(splitter, call, left, splitter.read(left))
    if isinstance(right, torch.fx.Node) and isinstance(right.meta["val"], torch.Tensor):
        right = _operand(splitter, call, right, splitter.call(aten.unsqueeze.default, right, -1))
    return splitter.call(call.target, pair, right)


def _operand(splitter: _Splitter, call: OpCall, value: torch.fx.Node, pair: torch.fx.Node) -> torch.fx.Node:
    """``pair`` as an operand in the place of ``value``, of which it has one dimension more.

    A tensor without dimensions does not decide whether a result is in double precision, but one with a dimension does.
    """
    dtype = call.node.meta["val"].dtype.to_real()
    if value.meta["val"].dim() or pair.meta["val"].dtype == dtype:
        return pair
    return splitter.call(aten._to_copy.default, pair, dtype=dtype)


def _sum(splitter: _Splitter, call: OpCall) -> torch.fx.Node | None:
    left, right = call.arguments["self"], call.arguments["other"]
    if call.arguments.get("alpha", 1) != 1 or not _is_complex(left) or not _is_complex(right):
        return None
    return splitter.call(call.target, *(_operand(splitter, call, value, splitter.read(value)) for value in (left, right)))


def _polar(splitter: _Splitter, call: OpCall) -> torch.fx.Node:
    size, angle = call.arguments["abs"], call.arguments["angle"]
    parts = [splitter.call(aten.mul.Tensor, size, splitter.call(target, angle)) for target in (aten.cos.default, aten.sin.default)]
    return splitter.join(parts[0], parts[1])


def _conjugate(splitter: _Splitter, call: OpCall) -> torch.fx.Node:
    pair = splitter.read(call.arguments["self"])
    return splitter.join(splitter.part(pair, 0), splitter.call(aten.neg.default, splitter.part(pair, 1)))


def _reshaped(splitter: _Splitter, call: OpCall) -> torch.fx.Node:
    sizes = call.arguments["shape" if call.target is aten.reshape.default else "size"]
    return splitter.call(aten.reshape.default, splitter.read(call.arguments["self"]), [*sizes, 2])


def _expanded(splitter: _Splitter, call: OpCall) -> torch.fx.Node:
    return splitter.call(aten.expand.default, splitter.read(call.arguments["self"]), [*call.arguments["size"], 2])


def _permuted(splitter: _Splitter, call: OpCall) -> torch.fx.Node:
    rank = call.arguments["self"].meta["val"].dim()
    order = [int(dim) % rank for dim in call.arguments["dims"]]
    return splitter.call(aten.permute.default, splitter.read(call.arguments["self"]), [*order, rank])


def _along(*names: str, extra: int = 0) -> Callable[[_Splitter, OpCall], torch.fx.Node | None]:
    """A call with dimensions by name, counted from the front, since the pairs have one more at the end."""

    def rule(splitter: _Splitter, call: OpCall) -> torch.fx.Node | None:
        rank = call.arguments["self"].meta["val"].dim() + extra
        if rank == 0:  # The only dimension of the pairs is not one of the value.
            return None
        arguments = {name: int(value) % rank if name in names else value for name, value in call.arguments.items()}
        arguments["self"] = splitter.read(call.arguments["self"])
        return splitter.call(call.target, *arguments.values())

    return rule


def _joined(splitter: _Splitter, call: OpCall) -> torch.fx.Node | None:
    tensors = call.arguments["tensors"]
    ranks = {item.meta["val"].dim() for item in tensors}
    if len(ranks) != 1 or not all(_is_complex(item) for item in tensors):
        return None
    return splitter.call(aten.cat.default, [splitter.read(item) for item in tensors], int(call.arguments["dim"]) % ranks.pop())


def _same(splitter: _Splitter, call: OpCall) -> torch.fx.Node:
    return splitter.read(call.arguments["self"])


_RULES: dict[Callable[..., Any], Callable[[_Splitter, OpCall], torch.fx.Node | None]] = {
    aten.view_as_complex.default: lambda splitter, call: call.arguments["self"],
    aten.complex.default: _complex,
    aten.polar.default: _polar,
    aten.mul.Tensor: _product,
    aten.div.Tensor: _quotient,
    aten.add.Tensor: _sum,
    aten.sub.Tensor: _sum,
    aten.neg.default: lambda splitter, call: splitter.call(aten.neg.default, splitter.read(call.arguments["self"])),
    aten._conj.default: _conjugate,
    aten.conj_physical.default: _conjugate,
    aten.view.default: _reshaped,
    aten.reshape.default: _reshaped,
    aten._unsafe_view.default: _reshaped,
    aten.expand.default: _expanded,
    aten.permute.default: _permuted,
    aten.unsqueeze.default: _along("dim", extra=1),
    aten.squeeze.dim: _along("dim"),
    aten.transpose.int: _along("dim0", "dim1"),
    aten.slice.Tensor: _along("dim"),
    aten.select.int: _along("dim"),
    aten.index_select.default: _along("dim"),
    aten.cat.default: _joined,
    aten.clone.default: _same,
    aten.alias.default: _same,
    aten.detach.default: _same,
    aten.resolve_conj.default: _same,
    aten.resolve_neg.default: _same,
}
_EXITS: dict[Any, Callable[[Build, torch.fx.Node], torch.fx.Node]] = {
    aten.view_as_real.default: lambda call, pair: call(aten.alias.default, pair),
    aten.real.default: lambda call, pair: call(aten.select.int, pair, -1, 0),
    aten.imag.default: lambda call, pair: call(aten.select.int, pair, -1, 1),
    aten.abs.default: lambda call, pair: call(aten.hypot.default, call(aten.select.int, pair, -1, 0), call(aten.select.int, pair, -1, 1)),
    aten.angle.default: lambda call, pair: call(aten.atan2.default, call(aten.select.int, pair, -1, 1), call(aten.select.int, pair, -1, 0)),
}
"""Calls that read complex numbers and give real ones."""


def _is_complex(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return isinstance(value, torch.Tensor) and value.is_complex()
