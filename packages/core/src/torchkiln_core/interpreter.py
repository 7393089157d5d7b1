"""Runs a network on real tensors by the semantics of its layers: the reference that every engine is compared with."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from torchkiln_core.errors import InternalError
from torchkiln_core.layers.source import Constant
from torchkiln_core.network import Network, Step, Value


class Interpreter:
    """A network as a function of its inputs, on the device of the inputs.

    Constants are kept per device; intermediate values are freed after their last use. Threads may call one interpreter at the same time.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self._constants: dict[torch.device, dict[Value, torch.Tensor]] = {}
        self._last_use = self._find_last_uses()
        self._bodies = {body: Interpreter(body) for step in network.steps for body in step.layer.bodies().values()}

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Runs the layers in order.

        Args:
            *inputs: One tensor per network input, in order, all on one device.

        Raises:
            InternalError: Wrong number of inputs, or a layer broke its promise of dtype or rank.
        """
        if len(inputs) != len(self.network.inputs):
            raise InternalError(f"network: expected {len(self.network.inputs)} inputs, got {len(inputs)}")
        device = inputs[0].device if inputs else torch.device("cpu")
        with torch.no_grad(), device:
            return self._run_on(device, inputs)

    def _run_on(self, device: torch.device, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        environment: dict[Value, torch.Tensor] = dict(zip(self.network.inputs, inputs, strict=True))
        environment |= self._constants_on(device)
        kept = {value for _, value in self.network.outputs}
        for index, step in enumerate(self.network.steps):
            if isinstance(step.layer, Constant):
                continue
            self._run(step, environment, device)
            for value in self._last_use.get(index, ()):
                if value not in kept:
                    del environment[value]
        return tuple(environment[value] for _, value in self.network.outputs)

    def _run_body(self, device: torch.device, body: Network, operands: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return self._bodies[body]._run_on(device, operands)

    def _run(self, step: Step, environment: dict[Value, torch.Tensor], device: torch.device) -> None:
        operands: list[Any] = [functools.partial(self._run_body, device)] if step.layer.bodies() else []
        operands += step.arguments([None if value is None else environment[value] for value in step.inputs])
        result = step.layer.run(*operands)
        results = result if isinstance(result, tuple) else (result,)
        for value, tensor in zip(step.outputs, results, strict=True):
            if tensor.dtype != value.dtype or tensor.dim() != value.rank:
                raise InternalError(f"expected {value!r}, got {tensor.dtype} {list(tensor.shape)}", layer=step.name, where=step.where)
            environment[value] = tensor

    def _constants_on(self, device: torch.device) -> dict[Value, torch.Tensor]:
        found = self._constants.get(device)
        if found is not None:
            return found
        moved = {step.outputs[0]: step.layer.tensor.detach().to(device) for step in self.network.steps if isinstance(step.layer, Constant)}
        # Atomic: of threads that come here together, all use the copies of the first.
        return self._constants.setdefault(device, moved)

    def _find_last_uses(self) -> dict[int, list[Value]]:
        last: dict[Value, int] = {}
        for index, step in enumerate(self.network.steps):
            if not isinstance(step.layer, Constant):
                last |= dict.fromkeys(step.outputs, index) | {value: index for value in step.inputs if value is not None}
        constants = {step.outputs[0] for step in self.network.steps if isinstance(step.layer, Constant)}
        result: dict[int, list[Value]] = {}
        for value, index in last.items():
            if value not in constants:
                result.setdefault(index, []).append(value)
        return result
