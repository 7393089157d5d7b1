"""``benchmark=True``: which engine segments are faster than the same calls in PyTorch, measured on the GPU at hand."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchkiln.logs import warn_once
from torchkiln.segment_compiler import CompiledSegment
from torchkiln.torch_segments import TorchSegments, by_inductor
from torchkiln_core import Network, Program

Timer = Callable[[Callable[[], Any], torch.device], float]
"""Milliseconds that a call takes when it follows another one."""

_WARM_UP = 4
"""Calls before measuring: kernels are compiled in the first, and CUDA graphs captured in the third at the latest."""
_ROUNDS = 3
_ROUND_MS = 20.0
_MOST_CALLS = 200


class SegmentBenchmark:
    """Times engine segments at the sizes that their plans are optimised for.

    Args:
        device: Where the program runs.
        torch_segments: How segments in PyTorch run.
        kept: Names of calls, with globs, whose segments stay engines.
        timer: Measures one way to run a segment.
    """

    def __init__(self, device: torch.device, torch_segments: TorchSegments, kept: Sequence[str] = (), timer: Timer | None = None) -> None:
        self._device = device
        self._by_inductor = torch_segments == "inductor"
        self._kept = kept
        self._timer = timer or milliseconds_in_a_row

    def __call__(self, made: CompiledSegment, program: Program) -> str | None:
        """Why a segment should run in PyTorch, with both times, or ``None`` when its engine is at least as fast."""
        names = [node.name for node in made.segment.module.graph.nodes if node.op == "call_function"]
        if any(fnmatch.filter(names, pattern) for pattern in self._kept):
            return None
        inputs = example_inputs(made.network, self._device)
        weights = [program.weights[name] for name in made.segment.weights]
        module = made.segment.module
        in_pytorch = by_inductor(module) if self._by_inductor else module.forward
        with torch.no_grad():
            try:
                torch_ms = self._timer(lambda: in_pytorch(*inputs, *weights), self._device)
            except (RuntimeError, ValueError, IndexError) as error:
                # Made-up inputs need not suit an operator; then there is nothing to compare with.
                warn_once(f"benchmark: {made.segment.name} cannot be timed in PyTorch and stays an engine: {error}")
                return None
            engine_ms = self._timer(lambda: made.engine(*inputs), self._device)
        if engine_ms <= torch_ms:
            return None
        return f"measured {torch_ms:.3f} ms in PyTorch and {engine_ms:.3f} ms in an engine"


def example_inputs(network: Network, device: torch.device) -> list[torch.Tensor]:
    """Inputs of the sizes that a plan is optimised for: random numbers in [0, 1), zeros where indices or conditions are expected."""
    generator = torch.Generator(device).manual_seed(0)
    made = []
    for spec in network.specs():
        if spec.dtype.is_floating_point and spec.dtype.itemsize > 1:
            made.append(torch.rand(spec.opt_shape, dtype=spec.dtype, device=device, generator=generator))
        else:
            made.append(torch.zeros(spec.opt_shape, dtype=spec.dtype, device=device))
    return made


def milliseconds_in_a_row(run: Callable[[], Any], device: torch.device) -> float:
    """The least mean over a few rounds of calls that follow one another, as in a loop that reads results at its end."""
    for _ in range(_WARM_UP):
        run()
    once = _round_ms(run, 1, device)
    count = max(1, min(_MOST_CALLS, int(_ROUND_MS / max(once, 1e-3))))
    return min(_round_ms(run, count, device) / count for _ in range(_ROUNDS))


def _round_ms(run: Callable[[], Any], count: int, device: torch.device) -> float:
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(count):
        run()
    torch.cuda.synchronize(device)
    return (time.perf_counter() - start) * 1e3
