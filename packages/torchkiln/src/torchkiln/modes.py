"""The modes of ``torch.compile`` as options of ours."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

MODES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "default": MappingProxyType({}),
        # Engines replay CUDA graphs in every mode but the last.
        "reduce-overhead": MappingProxyType({}),
        "max-autotune": MappingProxyType({"optimization_level": 5, "benchmark": True}),
        "max-autotune-no-cudagraphs": MappingProxyType({"optimization_level": 5, "benchmark": True, "cuda_graphs": "off"}),
    }
)
"""The options that each mode stands for; ``options={...}`` may be given instead of a mode."""


def options_of(mode: str | None, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of a call: those of its mode, then its own.

    Raises:
        ValueError: An unknown mode.
    """
    if mode is not None and mode not in MODES:
        raise ValueError(f"mode: expected one of {', '.join(map(repr, MODES))}, got {mode!r}")
    return {**MODES[mode or "default"], **options}
