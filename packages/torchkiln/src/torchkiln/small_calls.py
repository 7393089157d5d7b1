"""Branches of a model's own that tell sizes of 0 and 1 from all others, such as ``if x.shape[0] > 1``.

Capture takes every dynamic size for at least 2, so that the branch of the example is all that it sees, and leaves no trace of the question.
The model and what was captured of it run side by side at each such size that was declared, and a size at which they differ is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.utils import _pytree as pytree

from torchkiln.capture import Captured
from torchkiln.checks import ArgumentCheck
from torchkiln.compiled_module import CallableProgram
from torchkiln.size_guards import SMALLEST_TRACED, Comparison, SizeGuard
from torchkiln_core import ShapeOutOfProfile
from torchkiln_core.layers.checks import is_real
from torchkiln_core.size import evaluate
from torchkiln_lowering.effects import is_random

_SEED = 0x5EED
_CLOSE = {torch.float16: 5e-2, torch.bfloat16: 5e-2, torch.float64: 1e-8, torch.complex128: 1e-8}
_CLOSE_ELSE = 5e-3
"""Difference relative to the largest magnitude: another kernel for the same call, also in TF32, differs by less, another branch by more."""


def checked_at_small_sizes(captured: Captured, model: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Captured:
    """The captured model, with a guard against each size of 0 and 1 at which the model computes something else.

    Args:
        captured: What was captured of ``model``.
        model: Runs on copies of the arguments; its buffers are as before afterwards.
        args: The examples.
        kwargs: The examples.
    """
    flat = captured.convention.arrange(args, kwargs)
    points = list(_points(captured))
    tensors = [value for value in (*flat, *captured.program.weights.values()) if isinstance(value, torch.Tensor)]
    if not points or not all(is_real(tensor) and tensor.device.type != "meta" for tensor in tensors):
        return captured
    draws = any(map(is_random, captured.program.module.graph.nodes))
    trial = _Trial(captured, flat, _alike if draws else _same)
    program = _in_pytorch(captured)
    guards = tuple(_guard(changed) for changed, sizes in points if not trial.agrees(model, program, sizes))
    convention = dataclasses.replace(captured.convention, guards=(*captured.convention.guards, *guards))
    return dataclasses.replace(captured, convention=convention)


Point = tuple[Mapping[sympy.Symbol, int], Mapping[str, int]]
"""What is changed of the example's sizes, and all sizes then."""


def _points(captured: Captured) -> Iterator[Point]:
    dims = captured.program.dims
    sizes = {size for check in captured.convention.checks for size in check.shape if not isinstance(size, int)}
    symbols = sorted({symbol for size in sizes for symbol in size.free_symbols}, key=str)
    usual = {name: bounds.opt for name, bounds in dims.items()}
    small = [symbol for symbol in symbols if dims[symbol.name].min < SMALLEST_TRACED <= dims[symbol.name].max]
    changes = [{symbol: value} for symbol in small for value in range(dims[symbol.name].min, SMALLEST_TRACED)]
    if len(small) > 1:
        changes.append({symbol: dims[symbol.name].min for symbol in small})
    for changed in changes:
        yield changed, usual | {symbol.name: value for symbol, value in changed.items()}


def _guard(changed: Mapping[sympy.Symbol, int]) -> SizeGuard:
    return SizeGuard(tuple(Comparison("!=", symbol, value) for symbol, value in changed.items()))


def _in_pytorch(captured: Captured) -> CallableProgram:
    """The captured graph under its calling convention."""
    program = captured.program

    def run(inputs: Sequence[Any]) -> Sequence[Any]:
        values = {**program.weights, **dict(zip(program.user_inputs, inputs, strict=True))}
        results: Sequence[Any] = program.module(*(values[item.name] for item in program.inputs))
        return results

    return CallableProgram(captured.convention, run, program.user_inputs, captured.read_state)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Copies of what a call returned, and of its arguments and the buffers afterwards."""

    leaves: tuple[Any, ...]
    structure: pytree.TreeSpec


@dataclass(frozen=True, slots=True)
class _Trial:
    """Calls a function with the examples cut or repeated to other sizes; ``same`` compares two results."""

    captured: Captured
    flat: Sequence[Any]
    same: Callable[[Any, Any], bool]

    def agrees(self, model: Callable[..., Any], program: CallableProgram, sizes: Mapping[str, int]) -> bool:
        """Whether both do the same, or the model does not take these sizes, or the program refuses them anyway."""
        try:
            expected = self._call(model, sizes)
        except Exception:  # noqa: BLE001 - whatever the model raises there, it raises in eager PyTorch too
            return True
        try:
            got = self._call(program, sizes)
        except ShapeOutOfProfile:
            return True
        except Exception:  # noqa: BLE001 - the program does not hold where the model does
            return False
        return got.structure == expected.structure and all(map(self.same, got.leaves, expected.leaves))

    def _call(self, function: Callable[..., Any], sizes: Mapping[str, int]) -> _Outcome:
        given = [_sized(value, check, sizes) for value, check in zip(self.flat, self.captured.convention.checks, strict=True)]
        args, kwargs = pytree.tree_unflatten(given, self.captured.convention.in_spec)
        state = self.captured.read_state()
        before = [tensor.clone() for tensor in state]
        gpus = {value.device.index for value in (*given, *state) if isinstance(value, torch.Tensor) and value.device.type == "cuda"}
        with torch.random.fork_rng(sorted(gpus)), torch.no_grad():
            torch.manual_seed(_SEED)
            try:
                leaves, structure = pytree.tree_flatten((function(*args, **kwargs), given, list(state)))
                return _Outcome(tuple(leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves), structure)
            finally:
                for tensor, old in zip(state, before, strict=True):
                    tensor.copy_(old)


def _sized(value: Any, check: ArgumentCheck, sizes: Mapping[str, int]) -> Any:
    """A copy of an argument with its dynamic dimensions cut, or filled up from the start."""
    wanted = [evaluate(size, sizes) for size in check.shape]
    if check.kind == "int":
        return wanted[0]
    if not isinstance(value, torch.Tensor):
        return value
    copy = value.detach().clone()
    for dim, (size, old) in enumerate(zip(wanted, value.shape, strict=True)):
        if size != old:
            copy = copy.index_select(dim, torch.arange(size, device=copy.device) % max(old, 1))
    return copy


def _alike(got: Any, expected: Any) -> bool:
    """Whether two results are of one type, and tensors of one dtype and shape."""
    if isinstance(got, torch.Tensor) and isinstance(expected, torch.Tensor):
        return got.shape == expected.shape and got.dtype == expected.dtype
    return type(got) is type(expected)


def _same(got: Any, expected: Any) -> bool:
    """Whether they are equal up to rounding, too."""
    if not _alike(got, expected):
        return False
    if not isinstance(got, torch.Tensor):
        return bool(got == expected or (got != got and expected != expected))
    if not (got.is_floating_point() or got.is_complex()):
        return torch.equal(got, expected)
    finite = expected[expected.isfinite()].abs()
    atol = _CLOSE.get(got.dtype, _CLOSE_ELSE) * (float(finite.max()) if finite.numel() else 0.0)
    return torch.allclose(got, expected, rtol=0, atol=atol, equal_nan=True)
