"""The reference engine: the network record, run by torch on any device."""

from __future__ import annotations

import functools
from typing import Literal

import torch

from torchkiln_core import Binding, InternalError, Interpreter, Network
from torchkiln_runtime.inputs import check_inputs
from torchkiln_runtime.shapes import ShapeRules, find_symbols


def bindings_of(network: Network) -> tuple[tuple[Binding, ...], tuple[Binding, ...]]:
    """Inputs and outputs of a network."""
    inputs = tuple(Binding(value.name, value.dtype, value.shape) for value in network.inputs)
    return inputs, tuple(Binding(name, value.dtype, value.shape) for name, value in network.outputs)


class ReferenceEngine:
    """Runs a network by the semantics of its layers and refuses what an engine built from it would refuse.

    Outputs are contiguous and share no memory with inputs, weights or each other, as those of TensorRT.

    Args:
        network: The record.
    """

    kind: Literal["reference"] = "reference"

    def __init__(self, network: Network) -> None:
        self.inputs, self.outputs = bindings_of(network)
        self._interpreter = Interpreter(network)
        self._weights = frozenset(
            value.constant.untyped_storage().data_ptr()
            for step in network.all_steps()
            for value in step.outputs
            if value.constant is not None
        )
        specs = network.specs()
        self._rules = ShapeRules(self.inputs, self.outputs, find_symbols(self.inputs), [(spec.min_shape, spec.max_shape) for spec in specs])
        self._output_shapes = functools.lru_cache(maxsize=256)(self._rules.output_shapes)

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Runs the network on the device of its inputs.

        Raises:
            PlanError: Wrong number, dtype or device of inputs.
            ShapeOutOfProfile: A size outside what the network was written for.
            InternalError: A layer broke its promise.
        """
        check_inputs(self.inputs, inputs, None)
        expected = self._output_shapes(tuple(tuple(tensor.shape) for tensor in inputs))
        results = self._interpreter(*inputs)
        taken = {tensor.untyped_storage().data_ptr() for tensor in inputs} | self._weights
        owned = []
        for binding, shape, result in zip(self.outputs, expected, results, strict=True):
            if tuple(result.shape) != shape:
                raise InternalError(f"output {binding.name}: expected shape {list(shape)}, got {list(result.shape)}")
            place = result.untyped_storage().data_ptr()
            owned.append(result.clone(memory_format=torch.contiguous_format) if place in taken else result.contiguous())
            taken.add(owned[-1].untyped_storage().data_ptr())
        return tuple(owned)
