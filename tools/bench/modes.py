"""The ways of running a model that are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from rows import Workload

import torchkiln

Run = Callable[..., Any]


def _eager(workload: Workload) -> tuple[Run, Mapping[str, float]]:
    return workload.model, {}


def _inductor(workload: Workload) -> tuple[Run, Mapping[str, float]]:
    return torch.compile(workload.model, dynamic=False), {}


def _inductor_reduce_overhead(workload: Workload) -> tuple[Run, Mapping[str, float]]:
    return torch.compile(workload.model, dynamic=False, mode="reduce-overhead"), {}


def _torchkiln(workload: Workload) -> tuple[Run, Mapping[str, float]]:
    compiled = torchkiln.compile(
        workload.model, workload.args, workload.kwargs, weights="frozen", engine="tensorrt", require_full_compilation=True
    )
    return compiled, compiled.report.stage_ms


MODES: Mapping[str, Callable[[Workload], tuple[Run, Mapping[str, float]]]] = {
    "eager": _eager,
    "inductor": _inductor,
    "inductor reduce-overhead": _inductor_reduce_overhead,
    "torchkiln": _torchkiln,
}
"""Compiles a workload; gives what runs it and the time of each stage in milliseconds, where the mode has stages."""
PEERS = tuple(mode for mode in MODES if mode != "torchkiln")
"""What torchkiln is compared with."""
