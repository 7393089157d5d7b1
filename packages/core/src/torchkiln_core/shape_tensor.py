"""Writes the layers that compute sizes at run time from the shapes of a network's inputs."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, PythonMod

from torchkiln_core.errors import InternalError
from torchkiln_core.layers.indexing import Concatenation, Slice
from torchkiln_core.layers.pointwise import Elementwise, ElementwiseOp
from torchkiln_core.layers.shape import Shape
from torchkiln_core.size import Size, linear, through

if TYPE_CHECKING:
    from torchkiln_core.network import Network, Value

_FOLDS: Mapping[type[sympy.Expr], ElementwiseOp] = MappingProxyType(
    {
        sympy.Add: ElementwiseOp.SUM,
        sympy.Mul: ElementwiseOp.PROD,
        Max: ElementwiseOp.MAX,
        Min: ElementwiseOp.MIN,
        FloorDiv: ElementwiseOp.FLOOR_DIV,
    }
)


def write_sizes(net: Network, sizes: tuple[Size, ...]) -> Value:
    """An int64 ``[len(sizes)]`` value that holds ``sizes``; ``Value.sizes`` is set."""
    if all(isinstance(size, int) for size in sizes):
        value = net.constant(torch.tensor(sizes, dtype=torch.int64))
    else:
        parts = [_write(net, sympy.sympify(size)) for size in sizes]
        value = parts[0] if len(parts) == 1 else net.add(Concatenation(0), *parts)
    value.sizes = sizes
    return value


def has_layers(size: Size) -> bool:
    """Whether ``write_sizes`` writes a size whose symbols are dimensions of inputs; it does not where floating point rounds it."""
    expression = sympy.sympify(size)
    if expression.is_Integer or isinstance(expression, sympy.Symbol):
        return True
    if isinstance(expression, sympy.Pow):
        return bool(expression.exp.is_Integer and expression.exp > 0) and has_layers(expression.base)
    parts = expression.args
    return isinstance(expression, (Mod, PythonMod, *_FOLDS)) and all(map(has_layers, parts))


def _write(net: Network, size: sympy.Expr) -> Value:
    """An int64 ``[1]`` value holding one size."""
    if size.is_Integer:
        return net.constant(torch.tensor([int(size)], dtype=torch.int64))
    found = _read(net, size)
    if found is None and not isinstance(size, sympy.Symbol) and not all(_determines(net, part) for part in size.args):
        found = _write_through(net, size)
    if found is not None:
        return found
    if isinstance(size, sympy.Symbol):
        return _solve(net, size)
    if isinstance(size, (Mod, PythonMod)):
        left, right = (_write(net, part) for part in size.args)
        quotient = net.add(Elementwise(ElementwiseOp.FLOOR_DIV), left, right)
        product = net.add(Elementwise(ElementwiseOp.PROD), quotient, right)
        return net.add(Elementwise(ElementwiseOp.SUB), left, product)
    if isinstance(size, sympy.Pow) and size.exp.is_Integer and size.exp > 0:
        return _fold(net, ElementwiseOp.PROD, (size.base,) * int(size.exp))
    for kind, op in _FOLDS.items():
        if isinstance(size, kind):
            return _fold(net, op, size.args)
    raise InternalError(f"size {size}: {type(size).__name__} has no layers")


def _read(net: Network, size: sympy.Expr) -> Value | None:
    """``size`` where it is a dimension of an input, or an input holds it."""
    for value in net.inputs:
        if size in value.shape:
            shape = net.add(Shape(), value)
            return net.add(Slice((value.shape.index(size),), (1,), (1,)), shape)
        if value.sizes is not None and size in value.sizes:
            return net.add(Slice((value.sizes.index(size),), (1,), (1,)), value)
    return None


def _write_through(net: Network, size: sympy.Expr) -> Value | None:
    """``size`` by way of a dimension of an input, where its parts are not known one by one."""
    for way in through(size, _dims(net)):
        if _determines(net, way.factor):
            moved = _binary(net, ElementwiseOp.SUB, _write(net, way.known), way.subtrahend)
            part = _binary(net, ElementwiseOp.FLOOR_DIV, moved, way.divisor)
            scaled = part if way.factor == 1 else net.add(Elementwise(ElementwiseOp.PROD), part, _write(net, way.factor))
            return _binary(net, ElementwiseOp.SUM, scaled, way.offset)
    return None


def _binary(net: Network, op: ElementwiseOp, left: Value, right: int) -> Value:
    """``left`` where the number changes nothing."""
    neutral = 1 if op is ElementwiseOp.FLOOR_DIV else 0
    return left if right == neutral else net.add(Elementwise(op), left, _write(net, sympy.Integer(right)))


def _dims(net: Network) -> dict[sympy.Expr, None]:
    """The dimensions of inputs that are no numbers, each once."""
    return dict.fromkeys(dim for value in net.inputs for dim in value.shape if not isinstance(dim, int))


def _determines(net: Network, size: sympy.Expr) -> bool:
    """Whether dimensions of inputs, and what inputs hold, determine ``size``: its symbols, its parts, or one by way of another."""
    known = {*_dims(net), *(held for value in net.inputs for held in value.sizes or ())}
    if size in known or size.free_symbols <= known:
        return True
    lines = {line[2] for line in map(linear, _dims(net)) if line is not None}
    if {symbol.name for symbol in size.free_symbols - known} <= lines:
        return True
    if isinstance(size, sympy.Symbol):
        return False
    return all(_determines(net, part) for part in size.args) or any(_determines(net, way.factor) for way in through(size, _dims(net)))


def _solve(net: Network, symbol: sympy.Symbol) -> Value:
    """A symbol that stands in no dimension alone, from a dimension ``factor * symbol + offset`` such as ``2*s0``."""
    for value in net.inputs:
        for size in value.shape:
            if isinstance(size, int) or size.free_symbols != {symbol}:
                continue
            offset = size.xreplace({symbol: sympy.S.Zero})
            factor = size.xreplace({symbol: sympy.S.One}) - offset
            if factor.is_Integer and factor != 0 and sympy.expand(factor * symbol + offset - size) == 0:
                moved = _write(net, size) if offset == 0 else _fold(net, ElementwiseOp.SUM, (size, -offset))
                return moved if factor == 1 else net.add(Elementwise(ElementwiseOp.FLOOR_DIV), moved, _write(net, factor))
    shown = ", ".join(map(repr, net.inputs)) or "no inputs"
    raise InternalError(f"size {symbol}: no input of the network has a dimension that determines it; inputs: {shown}")


def _fold(net: Network, op: ElementwiseOp, parts: tuple[sympy.Expr, ...]) -> Value:
    values = [_write(net, part) for part in parts]
    return functools.reduce(lambda left, right: net.add(Elementwise(op), left, right), values)
