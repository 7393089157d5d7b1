"""Shape inference on fake tensors without touching the program's shape environment."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import sympy
import torch
import torch._prims_common
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from torchkiln_core.errors import InternalError
from torchkiln_core.size import Size, evaluate, format_size, symbols_of
from torchkiln_core.spec import DimRange


@contextlib.contextmanager
def no_new_guards(fake_mode: FakeTensorMode) -> Iterator[None]:
    """While active, inference in ``fake_mode`` may neither specialise a symbol nor leave unbacked ones behind.

    Raises:
        RuntimeError: An operator asks for a decision that would become a guard.
    """
    shape_env = fake_mode.shape_env
    if shape_env is None:
        yield
        return
    with _error_on_guards(shape_env), shape_env.ignore_fresh_unbacked_symbols():
        yield


@contextlib.contextmanager
def _error_on_guards(shape_env: ShapeEnv) -> Iterator[None]:
    """``ShapeEnv.error_on_new_guards``, also for torch 2.11, which lacks it, and without errors for guards that torch itself drops.

    ``_check_frozen`` is where an environment hears of a guard before it records anything. Fake tensors suppress guards where a decision
    shows in strides only, such as whether a tensor is empty.
    """
    strict = getattr(shape_env, "error_on_new_guards", None)
    attributes: dict[str, Any] = vars(shape_env)
    before = attributes.get("_check_frozen")
    check = shape_env._check_frozen

    def check_guard(expr: sympy.Basic, concrete: sympy.Basic) -> None:
        if shape_env._suppress_guards_tls():
            return
        if strict is None:
            raise RuntimeError(f"a guard on {expr} == {concrete} would specialise the program")
        check(expr, concrete)

    attributes["_check_frozen"] = check_guard
    try:
        with contextlib.nullcontext() if strict is None else strict(), _layouts_by_hint(shape_env):
            yield
    finally:
        if before is None:
            del attributes["_check_frozen"]
        else:
            attributes["_check_frozen"] = before


@contextlib.contextmanager
def _layouts_by_hint(shape_env: ShapeEnv) -> Iterator[None]:
    """Decides by the example sizes what strides alone depend on, such as whether a tensor is dense, where torch would guard.

    No layer depends on strides.
    """
    attributes: dict[str, Any] = vars(shape_env)
    before = attributes.get("evaluate_sym_node")
    evaluate_sym_node = shape_env.evaluate_sym_node

    def evaluate_without_guard(*args: Any, **kwargs: Any) -> Any:
        with shape_env.suppress_guards() if _asks_of_strides(sys._getframe(1)) else contextlib.nullcontext():
            return evaluate_sym_node(*args, **kwargs)

    attributes["evaluate_sym_node"] = evaluate_without_guard
    try:
        yield
    finally:
        if before is None:
            del attributes["evaluate_sym_node"]
        else:
            attributes["evaluate_sym_node"] = before


def _asks_of_strides(frame: types.FrameType | None) -> bool:
    """Whether one of torch's functions that decide a layout is among the nearest callers."""
    for _ in range(_NEAR):
        if frame is None:
            return False
        if frame.f_code.co_name in _LAYOUT_DECISIONS and frame.f_code.co_filename == torch._prims_common.__file__:
            return True
        frame = frame.f_back
    return False


_LAYOUT_DECISIONS = frozenset({"_is_non_overlapping_and_dense_or_false", "compute_elementwise_output_logical_to_physical_perm"})
_NEAR = 8
"""A comparison of two strides is asked for within so many calls."""


def statically_equal(left: Size, right: Size, fake_mode: FakeTensorMode) -> bool | None:
    """Whether two sizes are equal for every value of their symbols; ``None`` when that is undecided."""
    if isinstance(left, int) and isinstance(right, int):
        return left == right
    difference = sympy.expand(sympy.sympify(left) - sympy.sympify(right))
    if difference.is_Integer:
        return bool(difference == 0)
    shape_env = fake_mode.shape_env
    if shape_env is None:
        return None
    verdict = shape_env.simplify(sympy.Eq(left, right))
    return None if verdict not in (sympy.true, sympy.false) else bool(verdict)


def range_of(size: sympy.Expr, dims: Mapping[str, DimRange]) -> DimRange | None:
    """Bounds of an expression over symbols with known ranges, with its value at the symbols' ``opt``; ``None`` where it has none.

    A range that begins at 0 counts from 1 where only that has bounds: no call has a size that is a number divided by 0.
    """
    for least in (0, 1):
        values = {name: max(dims[name].opt, least) for name in symbols_of(size)}
        ranges = {
            symbol: ValueRanges(*(sympy.Integer(max(bound, least)) for bound in (dims[symbol.name].min, dims[symbol.name].max)))
            for symbol in size.free_symbols
        }
        bounds = bound_sympy(size, ranges)
        if bounds.lower.is_Integer and bounds.upper.is_Integer:
            low = max(0, int(bounds.lower))
            high = max(low, int(bounds.upper))
            return DimRange(format_size(size), low, min(max(evaluate(size, values), low), high), high)
    return None


def fake_mode_of(tensor: torch.Tensor) -> FakeTensorMode:
    """The fake mode that a fake tensor belongs to.

    Raises:
        InternalError: The tensor is not fake.
    """
    mode = getattr(tensor, "fake_mode", None)
    if not isinstance(mode, FakeTensorMode):
        raise InternalError(f"expected a fake tensor, got {type(tensor).__name__}")
    return mode
