"""How far roundings on its way may move the result of a call: the same call in float64 with a random error behind every operator.

Source: D. S. Parker, Monte Carlo Arithmetic (1997).
"""

from __future__ import annotations

import re
from typing import Any

import torch
from opinfo_call import SampleCall
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from torchkiln_testing import OpClass, tolerance

_RUNS = 32
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


_DROPS_OUT = re.compile("attention|rnn")
"""Operators that draw numbers for dropout alone, which samples of them leave out or make in an operator of its own."""


class _Roundings(TorchDispatchMode):
    """Moves what an operator computes by a random part of ``eps`` of each element.

    The numbers that a random operator draws may depend on the dtype, so such a one runs in ``dtype``.
    """

    def __init__(self, eps: float, dtype: torch.dtype, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._eps = eps
        self._dtype = dtype
        self._generator = generator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Views compute nothing, and what is written in place is the argument.
        if any(item.alias_info for item in func._schema.returns):
            return func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags and not _DROPS_OUT.search(func.name()):
            args, kwargs = _cast((args, kwargs or {}), torch.float64, self._dtype)
            return tree_map(self.moved, _cast(func(*args, **kwargs), self._dtype, torch.float64))
        return tree_map(self.moved, func(*args, **(kwargs or {})))

    def moved(self, value: Any) -> Any:
        """A tensor with other last places; anything else as it is."""
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        parts = torch.rand(value.shape, generator=self._generator, dtype=torch.float64).to(value.device, value.dtype) * 2 - 1
        return value * (1 + self._eps * parts)


def is_within_roundings(call: SampleCall, got: Any, dtype: torch.dtype, op_class: OpClass) -> bool:
    """Whether a result is as near to the exact one as roundings of arguments and of intermediate results to ``dtype`` move that.

    Args:
        call: What was computed.
        got: Its result and what became of the arguments.
        dtype: Of its arguments.
        op_class: Bounds what remains.
    """
    wide = call.widened(_FLOATS, torch.float64)
    generator = torch.Generator().manual_seed(0)
    mode = _Roundings(torch.finfo(dtype).eps, dtype, generator)
    try:
        # Attention in one operator would be rounded at its end only.
        with sdpa_kernel(SDPBackend.MATH):
            exact = _tensors(_rounded(wide, _Roundings(0.0, dtype, generator)))
            moved = [_tensors(_rounded(wide, mode)) for _ in range(_RUNS)]
    except (RuntimeError, TypeError, ValueError):
        return False
    results = [leaf for leaf in tree_leaves(got) if isinstance(leaf, torch.Tensor)]
    if [leaf.shape for leaf in results] != [leaf.shape for leaf in exact]:
        return False
    return all(_is_near(*item, op_class) for item in zip(results, exact, zip(*moved, strict=True), strict=True))


def _rounded(call: SampleCall, mode: _Roundings) -> Any:
    rounded = SampleCall(call.function, tuple(map(mode.moved, call.leaves)), call.spec)
    with mode:
        return rounded.eager()


def _cast(values: Any, dtype: torch.dtype, other: torch.dtype) -> Any:
    """``values`` with tensors of ``dtype`` in the other."""
    return tree_map(lambda leaf: leaf.to(other) if isinstance(leaf, torch.Tensor) and leaf.dtype == dtype else leaf, values)


def _is_near(result: torch.Tensor, exact: torch.Tensor, moved: tuple[torch.Tensor, ...], op_class: OpClass) -> bool:
    if not exact.is_floating_point():
        return torch.equal(result, exact)
    spread = torch.stack([item - exact for item in moved]).abs().amax(0)
    allowed = tolerance(result.dtype, op_class)
    near = (result.double() - exact).abs() <= allowed.atol + allowed.rtol * exact.abs() + spread
    # An infinite spread would excuse any number.
    return bool(torch.all((near & spread.isfinite()) | (result.double() == exact)))


def _tensors(outcome: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(outcome) if isinstance(leaf, torch.Tensor)]
