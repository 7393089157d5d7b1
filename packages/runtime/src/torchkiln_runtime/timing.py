"""How the builder chooses among kernels.

TensorRT for data centres times them, so two builds may choose differently; TensorRT-RTX (as of 1.6) builds the same plan every time, at
every level. Source: TensorRT's pages "IBuilderConfig" and "Algorithm Selection and Reproducible Builds".
"""

from __future__ import annotations

from typing import Any

from torchkiln_core import BuildError, BuildOptions
from torchkiln_runtime.library import Library

_ITERATIONS = 8
"""Runs over which ``benchmark`` has the time of a kernel averaged; TensorRT's default is 1."""


def configure_timing(config: Any, options: BuildOptions, library: Library) -> None:
    """Sets what an ``IBuilderConfig`` says about timing.

    Raises:
        BuildError: A level at which kernels are timed, where ``deterministic`` is asked for.
    """
    level, times = options.optimization_level, library.name == "tensorrt"
    if times and options.deterministic:
        if level:
            raise BuildError(
                f"optimization_level={level}: expected 0 with deterministic=True, since {library.name} chooses kernels by timing above it",
                fix="leave out optimization_level, or compile with deterministic=False",
            )
        # "Selecting the first tactic that succeeds", in the words of IBuilderConfig.
        level = 0
    if times and options.benchmark:
        config.avg_timing_iterations = _ITERATIONS
    if level is not None:
        config.builder_optimization_level = level
