"""What a value holds when it follows from constants alone."""

from __future__ import annotations

import torch

from torchkiln_core.layers.checks import is_real
from torchkiln_core.layers.source import Constant
from torchkiln_core.network import Network, Step, Value
from torchkiln_core.record import on_host

_KEPT_BYTES = 1 << 20
"""Larger contents are computed again when they are asked for again: kernels in float32 would add up to twice the weights."""


class ConstantValues:
    """Computes the contents of values on demand, by the layers' own semantics, on the host.

    A GPU would be no faster: each kind of kernel must first be loaded there, which costs more than the arithmetic, and host memory too.
    """

    def __init__(self, network: Network) -> None:
        self._producers = {value: step for step in network.steps for value in step.outputs}
        self._follows: dict[Value, bool] = {}
        self._kept: dict[Value, torch.Tensor] = {}

    def knows(self, value: Value | None) -> bool:
        """Whether the contents of ``value`` follow from constants that are at hand."""
        if value is None:
            return False
        if value not in self._follows:
            step = self._producers.get(value)
            self._follows[value] = step is not None and self._is_computable(step)
        return self._follows[value]

    def tensor(self, value: Value | None) -> torch.Tensor | None:
        """The contents of ``value``, on the host; ``None`` when they depend on an input of the network, or a constant is fake."""
        return self._compute(value, {}) if value is not None and self.knows(value) else None

    def _is_computable(self, step: Step) -> bool:
        if isinstance(step.layer, Constant):
            return is_real(step.layer.tensor)
        if not step.inputs or len(step.outputs) != 1 or step.layer.bodies():
            return False
        return all(value is None or self.knows(value) for value in step.inputs)

    def _compute(self, value: Value, meanwhile: dict[Value, torch.Tensor]) -> torch.Tensor:
        """The contents of a known value; ``meanwhile`` holds what one question computes on its way."""
        for found in (self._kept, meanwhile):
            if value in found:
                return found[value]
        step = self._producers[value]
        if isinstance(step.layer, Constant):
            return on_host(step.layer.tensor)
        operands = [None if operand is None else self._compute(operand, meanwhile) for operand in step.inputs]
        with torch.no_grad(), torch.device("cpu"):
            result: torch.Tensor = step.layer.run(*step.arguments(operands))
        (self._kept if result.nbytes <= _KEPT_BYTES else meanwhile)[value] = result
        return result
