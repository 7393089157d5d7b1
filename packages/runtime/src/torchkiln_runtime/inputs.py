"""The checks of an engine's inputs that do not depend on their shapes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchkiln_core import Binding, PlanError


def check_inputs(bindings: Sequence[Binding], inputs: Sequence[torch.Tensor], device: torch.device | None) -> None:
    """Checks the number, dtypes and devices of inputs; ``device`` is where all must be, ``None`` for wherever the first is.

    Raises:
        PlanError: One differs from what the engine was built for.
    """
    if len(inputs) != len(bindings):
        raise PlanError(f"engine: expected {len(bindings)} inputs, got {len(inputs)}")
    for binding, tensor in zip(bindings, inputs, strict=True):
        device = device or tensor.device
        if tensor.dtype is not binding.dtype:
            raise PlanError(
                f"input {binding.name!r}: expected {binding.dtype}, got {tensor.dtype}",
                fix=f"pass it as {binding.dtype}, or compile again with example inputs of the new dtype",
            )
        if tensor.device != device:
            raise PlanError(f"input {binding.name!r}: expected it on {device}, got {tensor.device}", fix=f"move it to {device}")
