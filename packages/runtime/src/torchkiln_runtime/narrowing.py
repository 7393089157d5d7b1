"""A network for other ranges of its symbols: one value, so that a plan is static, or the range of a profile."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import sympy

from torchkiln_core import DimRange, InternalError, Network, Size, Step, Value
from torchkiln_core.network import Layer
from torchkiln_core.size import bound_symbols, symbols_of


def narrowed(network: Network, dims: Mapping[str, DimRange]) -> Network:
    """The same layers, constants and names for the given ranges; symbols that are not among them keep theirs.

    A symbol whose range holds one value is replaced by it in every size, so a network whose symbols are all fixed is static. Like one
    read from a record, the network is complete and takes no further layers.
    """
    ranges = {**network.dims, **dims}
    values = {name: item.min for name, item in dims.items() if item.min == item.max}
    return _Narrowing(values, {name: item for name, item in ranges.items() if name not in values}).network(network, {})


def fixed_at(network: Network, shapes: Sequence[Sequence[int]]) -> dict[str, DimRange]:
    """The value of each symbol in the shapes ``[[*], ...]`` of the network's inputs, as a range of one value.

    Raises:
        InternalError: No dimension of an input determines a symbol.
    """
    sizes: list[Size] = [size for value in network.inputs for size in value.shape]
    known = bound_symbols(sizes, [size for shape in shapes for size in shape])
    fixed = {}
    for symbol in (name for size in sizes for name in symbols_of(size)):
        if symbol not in known:
            raise InternalError(f"symbol {symbol}: no dimension of an input determines it in shapes {[list(shape) for shape in shapes]}")
        fixed[symbol] = DimRange(symbol, known[symbol], known[symbol], known[symbol])
    return fixed


def input_symbols(network: Network) -> frozenset[str]:
    """Names of the symbols in the shapes of the inputs."""
    return frozenset(name for value in network.inputs for size in value.shape for name in symbols_of(size))


class _Narrowing:
    def __init__(self, values: Mapping[str, int], dims: dict[str, DimRange]) -> None:
        self._values = values
        self._dims = dims

    def network(self, old: Network, made: dict[Value, Value]) -> Network:
        new = Network()
        new.dims = self._dims
        new.inputs += [self._value(value, made) for value in old.inputs]
        for step in old.steps:
            inputs = tuple(None if value is None else made[value] for value in step.inputs)
            outputs = tuple(self._value(value, made) for value in step.outputs)
            new.steps.append(Step(step.name, self._layer(step.layer), inputs, outputs, step.where, step.weight))
        for name, value in old.outputs:
            new.output(name, made[value])
        return new

    def _layer(self, layer: Layer) -> Layer:
        bodies = {attribute: self.network(body, {}) for attribute, body in layer.bodies().items()}
        return dataclasses.replace(layer, **bodies) if bodies else layer

    def _value(self, old: Value, made: dict[Value, Value]) -> Value:
        shape = tuple(map(self._size, old.shape))
        sizes = None if old.sizes is None else tuple(map(self._size, old.sizes))
        made[old] = Value(old.name, old.dtype, shape, sizes=sizes, constant=old.constant)
        return made[old]

    def _size(self, size: Size) -> Size:
        if isinstance(size, int):
            return size
        known = {symbol: sympy.Integer(self._values[symbol.name]) for symbol in size.free_symbols if symbol.name in self._values}
        result = size.xreplace(known) if known else size
        return int(result) if result.is_Integer else result
