"""Converters from ATen operators to TensorRT layers, and the stage that writes an engine segment as a network."""

from __future__ import annotations

from torchkiln_converters.arrival import Operand, Result, Scalar
from torchkiln_converters.converter import Converter, converter
from torchkiln_converters.network_converter import NetworkConverter
from torchkiln_converters.registry import ConverterRegistry, builtin_converters, default_registry
from torchkiln_converters.support import Equals, Rule, Support, only_output, same_dtype, static_shape
from torchkiln_core import Requires

__all__ = [
    "Converter",
    "ConverterRegistry",
    "Equals",
    "NetworkConverter",
    "Operand",
    "Requires",
    "Result",
    "Rule",
    "Scalar",
    "Support",
    "builtin_converters",
    "converter",
    "default_registry",
    "only_output",
    "same_dtype",
    "static_shape",
]
