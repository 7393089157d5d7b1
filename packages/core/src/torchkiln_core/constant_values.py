"""What a value holds when it follows from constants alone."""

from __future__ import annotations

import torch

from torchkiln_core.layers.checks import is_real
from torchkiln_core.layers.source import Constant
from torchkiln_core.network import Network, Step, Value


class ConstantValues:
    """Computes the contents of values on demand, each once, by the layers' own semantics on the device of the constants."""

    def __init__(self, network: Network) -> None:
        self._producers = {value: step for step in network.steps for value in step.outputs}
        self._found: dict[Value, torch.Tensor | None] = {}

    def tensor(self, value: Value | None) -> torch.Tensor | None:
        """The contents of ``value``; ``None`` when they depend on an input of the network, or a constant is fake."""
        if value is None:
            return None
        if value not in self._found:
            step = self._producers.get(value)
            self._found[value] = None if step is None else self._compute(step)
        return self._found[value]

    def _compute(self, step: Step) -> torch.Tensor | None:
        if isinstance(step.layer, Constant):
            return step.layer.tensor.detach() if is_real(step.layer.tensor) else None
        if not step.inputs or len(step.outputs) != 1 or step.layer.bodies():
            return None
        tensors: list[torch.Tensor | None] = []
        for value in step.inputs:
            tensors.append(self.tensor(value))
            if tensors[-1] is None and value is not None:
                return None
        operands = step.arguments(tensors)
        devices = {operand.device for operand in operands if isinstance(operand, torch.Tensor)}
        # Numbers that converters write lie on the host, weights where the model is.
        place = next((device for device in devices if device.type != "cpu"), torch.device("cpu"))
        moved = [operand.to(place) if isinstance(operand, torch.Tensor) else operand for operand in operands]
        with torch.no_grad(), place:
            result: torch.Tensor = step.layer.run(*moved)
        return result
