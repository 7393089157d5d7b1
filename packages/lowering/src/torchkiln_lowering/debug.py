"""Debug mode: the graph before and after a pass runs on the same real inputs, and the results are compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from torchkiln_core.errors import LoweringError
from torchkiln_core.program import Program
from torchkiln_core.size import evaluate, size_of, symbols_of
from torchkiln_lowering.pipeline import Pass
from torchkiln_lowering.runner import Check

_SEED = 0x5EED


def value_check(program: Program) -> Check:
    """A check that runs both graphs on inputs made from the program's metadata; weights are the program's own.

    Raises:
        LoweringError: Inputs cannot be made here (a device that is missing, a size without a value).
    """
    inputs = _make_inputs(program)

    def check(item: Pass, before: torch.fx.Graph, after: torch.fx.GraphModule) -> None:
        expected, shared = _run(torch.fx.GraphModule(after, before), inputs)
        got, now_shared = _run(after, inputs)
        compare(item.name, expected, got)
        compare_aliases(item.name, shared, now_shared)

    return check


def compare(name: str, expected: tuple[Any, ...], got: tuple[Any, ...]) -> None:
    """Raises a ``LoweringError`` when two runs differ in number, dtype, shape ``[*]`` or, beyond rounding, values."""
    if len(expected) != len(got):
        raise LoweringError(f"pass {name} changes the number of results: expected {len(expected)}, got {len(got)}")
    for index, (old, new) in enumerate(zip(expected, got, strict=True)):
        if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
            if old != new:
                raise LoweringError(f"pass {name} changes result {index}: expected {old}, got {new}")
            continue
        if old.dtype != new.dtype or old.shape != new.shape:
            raise LoweringError(
                f"pass {name} changes result {index}: expected {old.dtype} {list(old.shape)}, got {new.dtype} {list(new.shape)}"
            )
        try:
            torch.testing.assert_close(new, old, equal_nan=True)
        except AssertionError as difference:
            raise LoweringError(f"pass {name} changes the values of result {index}: {difference}") from difference


Aliases = tuple[frozenset[str], ...]
"""For each result, the inputs and other results that it shares memory with."""


def compare_aliases(name: str, expected: Aliases, got: Aliases) -> None:
    """Raises a ``LoweringError`` when results share memory with other inputs or results than before."""
    for index, (old, new) in enumerate(zip(expected, got, strict=True)):
        if old != new:
            before, after = (", ".join(sorted(names)) or "nothing" for names in (old, new))
            raise LoweringError(f"pass {name} changes what result {index} shares memory with: expected {before}, got {after}")


def _run(module: torch.fx.GraphModule, inputs: tuple[Any, ...]) -> tuple[tuple[Any, ...], Aliases]:
    fresh = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
    devices = sorted({value.device.index for value in inputs if isinstance(value, torch.Tensor) and value.device.type == "cuda"})
    # Both runs draw the same random numbers.
    with torch.random.fork_rng(devices), torch.no_grad():
        torch.manual_seed(_SEED)
        try:
            results = tuple(torch.fx.Interpreter(module).run(*fresh))
        except Exception as error:
            raise LoweringError(
                f"lowering_debug: the graph does not run on made-up inputs: {error}", fix="compile without lowering_debug"
            ) from error

    return results, _aliases(fresh, results)


def _aliases(inputs: Sequence[Any], results: Sequence[Any]) -> Aliases:
    named = {f"input {index}": value for index, value in enumerate(inputs)}
    named |= {f"result {index}": value for index, value in enumerate(results)}
    memory = {
        name: value.untyped_storage().data_ptr() for name, value in named.items() if isinstance(value, torch.Tensor) and value.numel()
    }
    addresses = [memory.get(f"result {index}") for index in range(len(results))]
    return tuple(
        frozenset(name for name, other in memory.items() if other == address and name != f"result {index}")
        for index, address in enumerate(addresses)
    )


def _make_inputs(program: Program) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(_SEED)
    values: list[Any] = []
    for node in program.module.graph.find_nodes(op="placeholder"):
        fake = node.meta["val"]
        if node.name in program.weights:
            values.append(program.weights[node.name].detach())
        elif isinstance(fake, torch.Tensor):
            values.append(_make_tensor(fake, program, generator))
        elif isinstance(fake, torch.SymInt):
            values.append(_number(fake, program))
        else:
            values.append(fake)
    return tuple(values)


def _make_tensor(fake: torch.Tensor, program: Program, generator: torch.Generator) -> torch.Tensor:
    if fake.device.type == "cuda" and not torch.cuda.is_available():
        raise LoweringError(f"lowering_debug: expected {fake.device}, found no such device", fix="compile without lowering_debug")
    shape = [_number(size, program) for size in fake.shape]
    strides = [_number(stride, program) for stride in fake.stride()]
    if fake.dtype.is_floating_point or fake.dtype.is_complex:
        wide = torch.complex64 if fake.dtype.is_complex else torch.float32
        data = torch.randn(shape, generator=generator, dtype=wide).to(fake.dtype)
    else:
        # 0 and 1 are valid indices, masks and flags alike.
        data = torch.randint(0, 2, shape, generator=generator).to(fake.dtype)
    if math.prod(shape) == 0:
        return data.to(fake.device)
    return torch.empty_strided(shape, strides, dtype=fake.dtype).copy_(data).to(fake.device)


def _number(size: int | torch.SymInt, program: Program) -> int:
    expression = size_of(size)
    values = {name: item.opt for name, item in program.dims.items()}
    if isinstance(size, torch.SymInt) and not set(symbols_of(expression)) <= set(values):
        if size.node.hint is None:
            raise LoweringError(f"lowering_debug: the size {size} has no value", fix="compile without lowering_debug")
        return int(size.node.hint)
    return evaluate(expression, values)
