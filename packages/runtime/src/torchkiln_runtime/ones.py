"""Sizes of 1 inside of a dynamic engine, for which TensorRT-RTX needs its general kernels.

Kernels that it compiles for given sizes compute wrong numbers where a batched product has one row, or a softmax one element, and
elementwise layers follow: all but the first batch stays unwritten (TensorRT-RTX 1.6, seen on an H200). Kernels for all sizes are right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from torchkiln_core import Binding, Network, Size
from torchkiln_core.inference import range_of
from torchkiln_core.layers import Attention, Einsum, MatrixMultiply, Softmax
from torchkiln_core.size import symbols_of
from torchkiln_runtime.shapes import Range, ShapeRules, Shapes, Symbols


def inner_sizes(network: Network, symbols: Symbols) -> tuple[Size, ...]:
    """The sizes of a network's batched products and softmaxes, but for batches, that inputs decide and that may be 1.

    Args:
        network: The network.
        symbols: Where each symbol is read from an input.
    """
    known = {name for name, _, _ in symbols}
    found: dict[Size, None] = {}
    for size in dict.fromkeys(_sizes(network)):
        if isinstance(size, int) or not known.issuperset(symbols_of(size)):
            continue
        bounds = range_of(size, network.dims)
        if bounds is None or bounds.min <= 1:
            found[size] = None
    return tuple(found)


def _sizes(network: Network) -> Iterator[Size]:
    for step in network.all_steps():
        values = [value for value in (*step.inputs, *step.outputs) if value is not None]
        match step.layer:
            case MatrixMultiply() | Attention() if max(value.rank for value in values) > 2:
                for value in values:
                    yield from value.shape[-2:]
            case Einsum():
                for value in values:
                    yield from value.shape
            case Softmax(axis):
                yield values[0].shape[axis]


class Ones:
    """Tells whether some size inside is 1.

    Args:
        inputs: Input bindings.
        symbols: Where each symbol is read.
        ranges: Smallest and largest shape of every input.
        sizes: The sizes inside.
    """

    def __init__(self, inputs: Sequence[Binding], symbols: Symbols, ranges: Sequence[Range], sizes: Sequence[Size]) -> None:
        inside = Binding("sizes inside", torch.int64, tuple(sizes))
        self._rules = ShapeRules(inputs, [inside], symbols, ranges) if sizes else None

    def among(self, shapes: Shapes) -> bool:
        """Whether one is, for inputs of these shapes."""
        return self._rules is not None and 1 in self._rules.output_shapes(shapes)[0]
