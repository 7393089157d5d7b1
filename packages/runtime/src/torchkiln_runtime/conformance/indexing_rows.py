"""Rows of the layers that pick, place, join or reshape."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from torchkiln_core import Network, Value
from torchkiln_core.layers import (
    Concatenation,
    Gather,
    GatherMode,
    Linspace,
    OneHot,
    Scatter,
    ScatterMode,
    Shape,
    Shuffle,
    Slice,
    SliceMode,
)
from torchkiln_runtime.conformance.fills import below, distinct, edge_values, edges, random
from torchkiln_runtime.conformance.row import ALL, INTEGERS, NUMBERS, Operand, Row, apply


def indexing_rows() -> Iterator[Row]:
    """Every layer that moves elements, and those that make tensors. Nothing is computed, so all of them are exact."""
    for dtype in ALL:
        yield from _slices(dtype)
        yield from _joins(dtype)
        yield from _gathers(dtype)
        yield from _scatters(dtype)
        yield from _one_hot(dtype)
        yield from _shuffles(dtype)
    yield from _sources()


def _slices(dtype: torch.dtype) -> Iterator[Row]:
    fixed = Operand((5, 6), dtype, edges)
    for case, layer in (
        ("plain", Slice((1, 2), (3, 3), (1, 1))),
        ("strided", Slice((0, 1), (3, 2), (2, 3))),
        ("backwards", Slice((4, 5), (5, 3), (-1, -2))),
        ("stride 0", Slice((2, 0), (4, 6), (0, 1))),
        ("empty", Slice((2, 0), (0, 6), (1, 1))),
        ("clamp", Slice((-2, -1), (9, 8), (1, 1), SliceMode.CLAMP)),
        ("wrap", Slice((-2, -1), (9, 8), (1, 1), SliceMode.WRAP)),
        ("reflect", Slice((-2, -3), (9, 11), (1, 1), SliceMode.REFLECT)),
        ("fill 0", Slice((-2, -1), (9, 8), (1, 1), SliceMode.FILL)),
        ("fill strided", Slice((-2, -1), (5, 4), (2, 2), SliceMode.FILL)),
    ):
        yield Row("Slice", case, dtype, (fixed,), apply(layer), exact=True)

    def filled(net: Network, data: Value, fill: Value) -> Value:
        return net.add(Slice((-1, -2), (7, 9), (1, 1), SliceMode.FILL), data, None, None, None, fill)

    def dynamic(net: Network, data: Value) -> Value:
        size = net.size_tensor((data.shape[0], 2))
        start = net.size_tensor((0, data.shape[1] - 2 if isinstance(data.shape[1], int) else 0))
        return net.add(Slice(None, None, (1, 1)), data, start, size)

    def padded(net: Network, data: Value, fill: Value) -> Value:
        size = net.size_tensor((data.shape[0] + 3, data.shape[1] + 2))
        return net.add(Slice((-1, -2), None, (1, 1), SliceMode.FILL), data, None, size, None, fill)

    yield Row("Slice", "fill operand", dtype, (fixed, Operand((), dtype, edges)), filled, exact=True)
    yield Row("Slice", "size operands", dtype, (Operand(("n", 6), dtype, edges),), dynamic, exact=True)
    yield Row("Slice", "fill and size operands", dtype, (Operand(("n", "m"), dtype, edges), Operand((), dtype, edges)), padded, exact=True)


def _joins(dtype: torch.dtype) -> Iterator[Row]:
    for case, shapes, axis in (
        ("axis 0", (("n", 3), ("m", 3), (1, 3)), 0),
        ("axis 1", (("n", 3), ("n", "k")), 1),
        ("empty part", (("n", 3), ("n", 0)), 1),
        ("rank 1", (("n",), ("m",)), 0),
        ("one", (("n", 2),), 0),
    ):
        operands = tuple(Operand(shape, dtype, edges) for shape in shapes)
        yield Row("Concatenation", case, dtype, operands, apply(Concatenation(axis)), exact=True)


def _gathers(dtype: torch.dtype) -> Iterator[Row]:
    for index in INTEGERS:
        kind = str(index).removeprefix("torch.")
        for case, data, indices, fill, layer in (
            ("DEFAULT axis 0", (7, "n"), ("m", 2), below(7), Gather(GatherMode.DEFAULT, 0)),
            ("DEFAULT axis 1", ("n", 7, 2), ("m",), below(7), Gather(GatherMode.DEFAULT, 1)),
            ("DEFAULT scalar", ("n", 7), (), below(7), Gather(GatherMode.DEFAULT, 1)),
            ("DEFAULT no index", ("n", 7), (0,), below(7), Gather(GatherMode.DEFAULT, 1)),
            ("ELEMENT axis 1", ("n", 7), ("n", "m"), below(7), Gather(GatherMode.ELEMENT, 1)),
            ("ELEMENT axis 0", (7, 3), ("m", 3), below(7), Gather(GatherMode.ELEMENT, 0)),
            ("ND", (4, 5, "n"), ("m", 2), below(4), Gather(GatherMode.ND)),
            ("ND batched", (3, 4, "n"), (3, "m", 1), below(4), Gather(GatherMode.ND, 0, 1)),
        ):
            operands = (Operand(data, dtype, edges), Operand(indices, index, fill))
            yield Row("Gather", f"{case} {kind}", dtype, operands, apply(layer), exact=True)


def _scatters(dtype: torch.dtype) -> Iterator[Row]:
    for index in INTEGERS:
        kind = str(index).removeprefix("torch.")
        for case, shapes, fill, layer in (
            ("ELEMENT axis 0", ((9, 3), (4, 3), (4, 3)), distinct(0, 9), Scatter(ScatterMode.ELEMENT, 0)),
            ("ELEMENT axis 1", (("n", 9), ("n", 4), ("n", 4)), distinct(1, 9), Scatter(ScatterMode.ELEMENT, 1)),
            ("ND rows", ((9, "n"), (4, 1), (4, "n")), distinct(0, 9), Scatter(ScatterMode.ND)),
            ("ND elements", ((9, 9), (5, 2), (5,)), distinct(0, 9), Scatter(ScatterMode.ND)),
        ):
            operands = (Operand(shapes[0], dtype, edges), Operand(shapes[1], index, fill), Operand(shapes[2], dtype, random))
            yield Row("Scatter", f"{case} {kind}", dtype, operands, apply(layer), exact=True)


def _one_hot(dtype: torch.dtype) -> Iterator[Row]:
    held = (0, 1) if dtype is torch.bool else (2, -3)
    for case, shape, index, axis in (
        ("last", ("n", 3), torch.int32, 2),
        ("first", ("n", "m"), torch.int64, 0),
        ("middle", ("n", 3), torch.int64, 1),
        ("scalar", (), torch.int32, 0),
    ):

        def write(net: Network, indices: Value, axis: int = axis) -> Value:
            return net.add(OneHot(5, axis), indices, net.constant(torch.tensor(held).to(dtype)))

        yield Row("OneHot", case, dtype, (Operand(shape, index, below(5)),), write, exact=True)


def _shuffles(dtype: torch.dtype) -> Iterator[Row]:
    for case, shape, layer in (
        ("reshape", ("n", 6), Shuffle(dims=(-1, 2, 3))),
        ("transpose", ("n", "m", 2), Shuffle(first=(2, 0, 1))),
        ("all parts", ("n", 4, 6), Shuffle((1, 0, 2), (4, -1, 2, 3), (3, 2, 1, 0))),
        ("to rank 0", (1, 1), Shuffle(dims=())),
        ("from rank 0", (), Shuffle(dims=(1, 1))),
        ("to rank 8", ("n", 16), Shuffle(dims=(-1, 1, 2, 2, 1, 2, 2, 1))),
        ("empty", (0, 6), Shuffle(dims=(3, 0))),
        ("identity", ("n", 3), Shuffle()),
    ):
        yield Row("Shuffle", case, dtype, (Operand(shape, dtype, edges),), apply(layer), exact=True)

    def flattened(net: Network, data: Value) -> Value:
        size = net.size_tensor((data.shape[0] * data.shape[1], data.shape[2]))
        return net.add(Shuffle(), data, size)

    yield Row("Shuffle", "size operand", dtype, (Operand(("n", "m", "k"), dtype, edges),), flattened, exact=True)
    yield Row("Shape", "rank 3", dtype, (Operand(("n", 2, "k"), dtype, edges),), apply(Shape()), exact=True)
    yield Row("Shape", "rank 0", dtype, (Operand((), dtype, edges),), apply(Shape()), exact=True)


def _sources() -> Iterator[Row]:
    for dtype in (torch.float32, torch.int32, torch.int64):
        for case, start, delta in (("up", 2, 3), ("down", 5, -1), ("still", 1, 0)):

            def filled(net: Network, data: Value, start: int = start, delta: int = delta, dtype: torch.dtype = dtype) -> Value:
                return net.add(Linspace(start, delta, dtype), net.size_tensor((data.shape[0] * 2,)))

            yield Row("Linspace", case, dtype, (Operand(("n",), torch.float32, random),), filled, exact=True)
    for dtype in ALL:

        def constants(net: Network, data: Value, dtype: torch.dtype = dtype) -> tuple[Value, ...]:
            held = edge_values(dtype)
            return tuple(net.constant(tensor) for tensor in (held, held[3], held[:0].reshape(0, 2), held.reshape(2, 1, 2, 1, 2, 1, 3, 1)))

        yield Row("Constant", "ranks 1, 0, empty, 8", dtype, (Operand(("n",), torch.float32, random),), constants, exact=True)
    for dtype in NUMBERS:

        def twice(net: Network, data: Value) -> tuple[Value, ...]:
            return data, data

        yield Row("Constant", "an input as two outputs", dtype, (Operand(("n", 24), dtype, edges),), twice, exact=True)
