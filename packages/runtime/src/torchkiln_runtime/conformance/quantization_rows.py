"""Rows of quantization."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from torchkiln_core import Network, Value
from torchkiln_core.layers import Dequantize, Quantize
from torchkiln_runtime.conformance.fills import ordered, random
from torchkiln_runtime.conformance.row import FLOATS, Operand, Row, Shape, Writer

_CHANNELS = (0.05, 0.25, 0.7)
_KINDS = {torch.int8: "int8", torch.float8_e4m3fn: "fp8"}


def quantization_rows() -> Iterator[Row]:
    """Quantize, and Dequantize of what was quantized."""
    for quantized, kind in _KINDS.items():
        for dtype in FLOATS:
            yield from _round_trips(quantized, kind, dtype)
        yield from _details(quantized, kind)
    for dtype in FLOATS:
        operand = Operand(("n", 9), dtype, random)
        yield Row("Quantize", "int8 result", dtype, (operand,), _quantized(torch.tensor(0.05, dtype=dtype)), exact=True)


def _round_trip(quantized: torch.dtype, scale: torch.Tensor, axis: int | None = None, block: tuple[int, ...] | None = None) -> Writer:
    """Quantizes and dequantizes: TensorRT writes no fp8 outputs that torch can compare, and constants of 8 bits only before Dequantize."""

    def write(net: Network, value: Value) -> Value:
        factor = net.constant(scale)
        small = net.add(Quantize(quantized, axis, block), value, factor)
        return net.add(Dequantize(value.dtype, axis, block), small, factor)

    return write


def _quantized(scale: torch.Tensor) -> Writer:
    def write(net: Network, value: Value) -> Value:
        return net.add(Quantize(torch.int8), value, net.constant(scale))

    return write


def _round_trips(quantized: torch.dtype, kind: str, dtype: torch.dtype) -> Iterator[Row]:
    blocks = torch.tensor([_CHANNELS, _CHANNELS[::-1]], dtype=dtype)
    cases: tuple[tuple[str, Shape, Writer], ...] = (
        ("one scale", ("n", 3, "k"), _round_trip(quantized, torch.tensor(0.05, dtype=dtype))),
        ("axis 1", ("n", 3, "k"), _round_trip(quantized, torch.tensor(_CHANNELS, dtype=dtype), 1)),
        ("axis 0", (3, "n"), _round_trip(quantized, torch.tensor(_CHANNELS, dtype=dtype), 0)),
        ("blocks", (32, 3), _round_trip(quantized, blocks, block=(16, 1))),
    )
    for case, shape, write in cases:
        yield Row("Quantize", f"{kind} {case}", dtype, (Operand(shape, dtype, random),), write)
    if dtype is not torch.float32:
        wide = _round_trip(quantized, torch.tensor(0.05))
        yield Row("Quantize", f"{kind} float32 scale", dtype, (Operand(("n", 3, "k"), dtype, random),), wide)


def _details(quantized: torch.dtype, kind: str) -> Iterator[Row]:
    dtype = torch.float32
    for case, shape, scale in (("ties and infinities", ("n", 24), 0.5), ("rank 1", ("n",), 0.05), ("empty", ("n", 0), 0.05)):
        operand = Operand(shape, dtype, ordered)
        yield Row("Quantize", f"{kind} {case}", dtype, (operand,), _round_trip(quantized, torch.tensor(scale)))

    for result in FLOATS:
        generator = torch.Generator().manual_seed(5)
        held = random((3, 8), torch.float32, generator).mul(40).clamp(-127, 127).to(quantized)

        def weights(net: Network, value: Value, result: torch.dtype = result, held: torch.Tensor = held) -> Value:
            return net.add(Dequantize(result, 0), net.constant(held), net.constant(torch.tensor(_CHANNELS, dtype=result)))

        yield Row("Dequantize", f"{kind} constant", result, (Operand(("n",), dtype, random),), weights)
    if quantized is torch.int8:
        for result in FLOATS:

            def given(net: Network, value: Value, result: torch.dtype = result) -> Value:
                return net.add(Dequantize(result), value, net.constant(torch.tensor(0.05, dtype=result)))

            yield Row("Dequantize", "int8 input", result, (Operand(("n", 5), torch.int8, random),), given)
