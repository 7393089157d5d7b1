"""Running numbers."""

from __future__ import annotations

import torch

from torchkiln_core import Network, Size, Value
from torchkiln_core.layers import Linspace


def positions(net: Network, count: Size, dtype: torch.dtype, start: float = 0, step: float = 1) -> Value:
    """``start + i * step`` for ``i`` in ``[0, count)``: ``[count]`` of int32, int64 or float32; a constant when ``count`` is static."""
    if isinstance(count, int):
        exact = torch.float64 if dtype.is_floating_point else torch.int64
        return net.constant((torch.arange(count, dtype=exact) * step + start).to(dtype))
    return net.add(Linspace(start, step, dtype), net.size_tensor((count,)))
