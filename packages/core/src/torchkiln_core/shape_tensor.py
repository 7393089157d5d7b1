"""Writes the layers that compute sizes at run time from the shapes of a network's inputs."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, PythonMod

from torchkiln_core.errors import InternalError
from torchkiln_core.layers.indexing import Concatenation, Slice
from torchkiln_core.layers.pointwise import Elementwise, ElementwiseOp
from torchkiln_core.layers.shape import Shape
from torchkiln_core.size import Size

if TYPE_CHECKING:
    from torchkiln_core.network import Network, Value


def write_sizes(net: Network, sizes: tuple[Size, ...]) -> Value:
    """An int64 ``[len(sizes)]`` value that holds ``sizes``; ``Value.sizes`` is set."""
    if all(isinstance(size, int) for size in sizes):
        value = net.constant(torch.tensor(sizes, dtype=torch.int64))
    else:
        parts = [_write(net, sympy.sympify(size)) for size in sizes]
        value = parts[0] if len(parts) == 1 else net.add(Concatenation(0), *parts)
    value.sizes = sizes
    return value


def _write(net: Network, size: sympy.Expr) -> Value:
    """An int64 ``[1]`` value holding one size."""
    if size.is_Integer:
        return net.constant(torch.tensor([int(size)], dtype=torch.int64))
    for value in net.inputs:
        if size in value.shape:
            shape = net.add(Shape(), value)
            return net.add(Slice((value.shape.index(size),), (1,), (1,)), shape)
    match size:
        case sympy.Add():
            return _fold(net, ElementwiseOp.SUM, size.args)
        case sympy.Mul():
            return _fold(net, ElementwiseOp.PROD, size.args)
        case Max():
            return _fold(net, ElementwiseOp.MAX, size.args)
        case Min():
            return _fold(net, ElementwiseOp.MIN, size.args)
        case FloorDiv():
            return _fold(net, ElementwiseOp.FLOOR_DIV, size.args)
        case Mod() | PythonMod():
            left, right = (_write(net, part) for part in size.args)
            quotient = net.add(Elementwise(ElementwiseOp.FLOOR_DIV), left, right)
            product = net.add(Elementwise(ElementwiseOp.PROD), quotient, right)
            return net.add(Elementwise(ElementwiseOp.SUB), left, product)
        case sympy.Pow(base=base, exp=exponent) if exponent.is_Integer and exponent > 0:
            return _fold(net, ElementwiseOp.PROD, (base,) * int(exponent))
        case sympy.Symbol():
            shown = ", ".join(map(repr, net.inputs)) or "no inputs"
            raise InternalError(f"size {size}: no input of the network has a dimension of this size; inputs: {shown}")
        case _:
            raise InternalError(f"size {size}: {type(size).__name__} has no layers")


def _fold(net: Network, op: ElementwiseOp, parts: tuple[sympy.Expr, ...]) -> Value:
    values = [_write(net, part) for part in parts]
    return functools.reduce(lambda left, right: net.add(Elementwise(op), left, right), values)
