"""Layers between floats and 8-bit numbers with a scale."""

from __future__ import annotations

from typing import Any

from torchkiln_core.layers import Dequantize, Quantize
from torchkiln_runtime.adapter.definition import Definition


def quantize(to: Definition, layer: Quantize, input: Any, scale: Any) -> Any:
    """``IQuantizeLayer``."""
    return _scaled(to, layer, to.network.add_quantize(input, scale, to.dtype(layer.dtype)))


def dequantize(to: Definition, layer: Dequantize, input: Any, scale: Any) -> Any:
    """``IDequantizeLayer``."""
    return _scaled(to, layer, to.network.add_dequantize(input, scale, to.dtype(layer.dtype)))


def _scaled(to: Definition, layer: Quantize | Dequantize, result: Any) -> Any:
    if result is None:
        return None
    if layer.axis is not None:
        result.axis = layer.axis
    if layer.block is not None:
        result.block_shape = to.dims(layer.block)
    return result
