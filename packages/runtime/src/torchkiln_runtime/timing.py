"""How the builder chooses among kernels.

TensorRT for data centres times them, so two builds may choose differently; TensorRT-RTX (as of 1.6) builds the same plan every time, at
every level. Source: TensorRT's pages "IBuilderConfig" and "Algorithm Selection and Reproducible Builds".
"""

from __future__ import annotations

import logging
from typing import Any

from torchkiln_core import BuildOptions
from torchkiln_runtime.library import Library

_log = logging.getLogger("torchkiln.build")

_ITERATIONS = 8
"""Runs over which ``benchmark`` has the time of a kernel averaged; TensorRT's default is 1."""


def configure_timing(config: Any, options: BuildOptions, library: Library) -> None:
    """Sets what an ``IBuilderConfig`` says about timing; ``deterministic`` goes before the level that is asked for, and says so."""
    level, times = options.optimization_level, library.name == "tensorrt"
    if times and options.deterministic:
        if level:
            _log.warning("optimization_level=%d: 0 is used, since a deterministic program must not choose its kernels by timing", level)
        # "Selecting the first tactic that succeeds", in the words of IBuilderConfig.
        level = 0
    if times and options.benchmark:
        config.avg_timing_iterations = _ITERATIONS
    if level is not None:
        config.builder_optimization_level = level
