"""The border cost model on a GPU: its constants as measured, and its decisions against forcing either side."""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from mixed_models import MIXED, Turns
from timing import latencies_ms
from turns import in_turn, wait_for_turn

import torchkiln
from torchkiln_partitioning import CostModel

_KEPT = ("aten.lgamma",)
"""What stays in PyTorch in every model, whatever converters there are."""
SIDES: Mapping[str, Mapping[str, Any]] = {
    "decided": {"min_block_size": 1, "border_cost": "on"},
    "engines": {"min_block_size": 1, "border_cost": "off"},
    "default": {},
}
"""Options that let the model decide, force all that can be in engines there, and change nothing; PyTorch for all is the model itself."""
JUDGED = "decided"
ROUNDS, SAMPLES = 20, 20
"""Many short rounds: on a host with neighbours the best of a few long ones may be a bad one."""


def latency_ms(run: Callable[..., Any], args: Sequence[torch.Tensor], samples: int = SAMPLES) -> float:
    """Median time of a call."""
    return float(statistics.median(latencies_ms(lambda: run(*args), samples)))


def on_gpu(command: Sequence[str], slower: float) -> tuple[dict[str, Any], list[str]]:
    """Measures, prints, and says which decisions were not measured, or take more than ``slower`` times the better of both sides.

    Args:
        command: Prints what ``compare_sides`` says of the model whose name is its last argument.
        slower: The limit.
    """
    begun = time.monotonic()
    rows, missed = [], []
    for name, done in zip(MIXED, in_turn([[*command, name] for name in MIXED]), strict=True):
        if done.returncode != 0:
            # The other models still tell something.
            print(done.stderr)
            missed.append(f"{name}: {done.stderr.strip().splitlines()[-1]}")
            continue
        row = json.loads(done.stdout.strip().splitlines()[-1])
        rows.append(row)
        best = min(row["ms"]["engines"], row["ms"]["PyTorch"])
        row["ratio"] = row["ms"][JUDGED] / best
        times = ", ".join(f"{side} {ms:.3f} ms ({row['engines'][side]} engines)" for side, ms in row["ms"].items())
        print(f"{name}: {times}; decided / better side: {row['ratio']:.3f}; {time.monotonic() - begun:.0f} s so far", flush=True)
        if row["ratio"] > slower:
            missed.append(f"{name}: decided {row['ms'][JUDGED]:.3f} ms, {row['ratio']:.2f} times {best:.3f} ms")
    warnings.simplefilter("error", torchkiln.FallbackWarning)
    with torch.no_grad():
        constants = measure_constants()
    used = dataclasses.asdict(CostModel())
    for name, value in constants.items():
        print(f"{name:>14}: {value:12.4g} measured, {used[name]:12.4g} in use")
    result = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "seconds": time.monotonic() - begun,
        "constants": constants,
        "in_use": used,
        "models": rows,
    }
    return result, missed


@torch.no_grad()
def compare_sides(name: str) -> dict[str, Any]:
    """Latency of a model on every side: the best of a few rounds, in each of which the sides take turns.

    Sides that are one program are measured as one.
    """
    warnings.simplefilter("error", torchkiln.FallbackWarning)
    torch.manual_seed(0)
    model, args = MIXED[name]()
    model, args = model.eval().cuda(), tuple(arg.cuda() for arg in args)
    exported = torch.export.export(model, args)
    tables: list[str] = []
    runs: dict[tuple[Any, ...], Callable[..., Any]] = {}
    sides: dict[str, tuple[Any, ...]] = {}
    for side, options in SIDES.items():
        told = {**options, "partition_report": tables.append} if side == JUDGED else options
        kinds = tuple((segment.kind, segment.calls) for segment in torchkiln.explain(exported, torch_executed_ops=_KEPT, **told).segments)
        key = sides[side] = kinds if any(kind == "engine" for kind, _ in kinds) else ()
        if key and key not in runs:
            runs[key] = torchkiln.compile(exported, engine="tensorrt", torch_executed_ops=_KEPT, **options)
    # A program without an engine runs as the model itself.
    sides["PyTorch"], runs[()] = (), model
    wait_for_turn()
    expected = model(*args)
    for run in runs.values():
        torch.testing.assert_close(run(*args), expected, rtol=5e-2, atol=5e-2)
    rounds = [{key: latency_ms(run, args) for key, run in runs.items()} for _ in range(ROUNDS)]
    ms = {key: min(times[key] for times in rounds) for key in runs}
    engines = {side: sum(kind == "engine" for kind, _ in key) for side, key in sides.items()}
    rounds_ms = {side: [times[key] for times in rounds] for side, key in sides.items()}
    return {"name": name, "ms": {side: ms[key] for side, key in sides.items()}, "rounds_ms": rounds_ms, "engines": engines, "table": tables}


def measure_constants() -> dict[str, float]:
    """The constants of ``CostModel`` on this GPU, from programs that differ in one of them."""
    x = torch.rand(8, 8, device="cuda")
    calls = [_in_pytorch(count, x) for count in (4, 24)]
    call_us = (calls[1] - calls[0]) / 20 * 1e3
    (one, program), (more_inputs, _), (more_outputs, _) = (_in_engine(*counts) for counts in ((1, 1), (9, 1), (1, 9)))
    per_input, per_output = (more_inputs - one) / 8 * 1e3, (more_outputs - one) / 8 * 1e3
    turns = [_in_turns(count, x) for count in (2, 8)]
    large = torch.rand(1 << 28, device="cuda", dtype=torch.float16)
    copy_ms = latency_ms(lambda value: value.clone(), (large,), 20)
    return {
        "call_us": call_us,
        "engine_us": (turns[1] - turns[0]) / 6 * 1e3 - call_us - per_input - per_output,
        "input_us": per_input,
        "output_us": per_output,
        "program_us": (program - one) * 1e3,
        "bytes_per_us": 2 * large.numel() * 2 / (copy_ms * 1e3),
        "narrow_flops_per_us": _flops_per_us(torch.float16, "ieee"),
        "tf32_flops_per_us": _flops_per_us(torch.float32, "tf32"),
        "fp32_flops_per_us": _flops_per_us(torch.float32, "ieee"),
        "product_share": _product_share(),
    }


def _in_pytorch(count: int, x: torch.Tensor) -> float:
    """A graph of that many calls, as a segment in PyTorch runs it."""

    class Chain(torch.nn.Module):
        def forward(self, value: torch.Tensor) -> torch.Tensor:
            for _ in range(count):
                value = value.relu()
            return value

    with torch.no_grad():
        module = torch.export.export(Chain(), (x,)).run_decompositions({}).graph_module
        return latency_ms(module.forward, (x,))


def _in_turns(count: int, x: torch.Tensor) -> float:
    """That many engines of one call, with a call in PyTorch behind each."""
    steps = [lambda value: value * 1.5] * count
    compiled = torchkiln.compile(
        Turns(*steps, torch.lgamma), (x,), engine="tensorrt", torch_executed_ops=_KEPT, min_block_size=1, border_cost="off"
    )
    return latency_ms(compiled, (x,))


def _flops_per_us(dtype: torch.dtype, precision: str) -> float:
    """Of a product of large matrices in PyTorch."""
    size = 4096
    matrix = torch.rand(size, size, device="cuda", dtype=dtype)
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = precision
    try:
        return 2 * size**3 / (latency_ms(torch.matmul, (matrix, matrix), 20) * 1e3)
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def _product_share() -> float:
    """Layers whose products take nearly all of their time, in an engine against PyTorch."""
    layers = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.GELU()) for _ in range(8))).eval().cuda()
    x = torch.rand(256, 2048, device="cuda")
    return latency_ms(torchkiln.compile(layers, (x,), engine="tensorrt"), (x,)) / latency_ms(layers, (x,))


def _in_engine(inputs: int, outputs: int) -> tuple[float, float]:
    """An engine on small tensors, alone and as the compiled module that a user calls."""

    class Many(torch.nn.Module):
        def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            total = sum(values[1:], values[0] * 1.5)
            return tuple(total + index for index in range(outputs))

    args = tuple(torch.rand(8, 8, device="cuda") for _ in range(inputs))
    compiled = torchkiln.compile(Many().eval(), args, engine="tensorrt", min_block_size=1)
    _, program = compiled.parts
    [engine] = [made.engine for made in program.segments.values()]
    with torch.no_grad():
        return latency_ms(engine, args), latency_ms(compiled, args)
