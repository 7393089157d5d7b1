"""``squared_relu(x) = relu(x) ** 2`` as a custom operator of torch."""

from __future__ import annotations

import torch


@torch.library.custom_op("squared_relu::forward", mutates_args=())
def squared_relu(x: torch.Tensor) -> torch.Tensor:
    """``[*] -> [*]``, floating."""
    return torch.relu(x).square()


@squared_relu.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)
