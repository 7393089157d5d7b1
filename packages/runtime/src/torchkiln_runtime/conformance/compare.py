"""How results are compared: bit by bit where nothing is computed, else within the precision of the dtype."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

_RELATIVE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What computed results may differ by.

    Attributes:
        relaxed: Factor on the relative precision of the dtype; above 1 it is relative to the mean of all results at least.
        absolute: What may be added whatever the size of the result, in epsilons of the dtype.
    """

    relaxed: float = 1.0
    absolute: float = 0.0

    def bound(self, expected: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The largest allowed differences ``[*]`` from float64 results ``[*]`` of ``dtype``."""
        finite = expected[expected.isfinite()]
        scale = finite.abs().clamp(max=1e4).mean().item() if self.relaxed > 1 and finite.numel() else 0.0
        size = expected.abs().clamp(min=max(scale, 1e-3))
        return _RELATIVE[dtype] * self.relaxed * size + self.absolute * torch.finfo(dtype).eps


def difference(expected: torch.Tensor, got: torch.Tensor, tolerance: Tolerance | None) -> tuple[bool, str | None]:
    """Whether two tensors ``[*]`` are equal bit by bit (NaNs of any kind, zeros of one sign), and what is wrong, if anything is.

    Without a tolerance all but equality is wrong.
    """
    if expected.dtype is not got.dtype or expected.shape != got.shape:
        return False, f"expected {expected.dtype} {list(expected.shape)}, got {got.dtype} {list(got.shape)}"
    if not expected.dtype.is_floating_point:
        return _verdict(expected != got, expected, got, "differs")
    nan = expected.isnan()
    for mask, what in (
        (nan != got.isnan(), "NaN differs"),
        (~nan & (expected.isinf() | got.isinf()) & (expected != got), "infinity differs"),
        (~nan & (expected == 0) & (got == 0) & (torch.signbit(expected) != torch.signbit(got)), "sign of zero differs"),
    ):
        if bool(mask.any()):
            return _verdict(mask, expected, got, what)
    finite = expected.isfinite()
    unequal = finite & (expected != got)
    if not bool(unequal.any()):
        return True, None
    if tolerance is None:
        return _verdict(unequal, expected, got, "differs")
    wide = expected.double()
    is_off = finite & ((wide - got.double()).abs() > tolerance.bound(wide, expected.dtype))
    _, wrong = _verdict(is_off, expected, got, f"differs by more than {_RELATIVE[expected.dtype] * tolerance.relaxed:.1e}")
    return False, wrong


def _verdict(mask: torch.Tensor, expected: torch.Tensor, got: torch.Tensor, what: str) -> tuple[bool, str | None]:
    count = int(mask.sum())
    if count == 0:
        return True, None
    places = mask.nonzero()[:3].tolist()
    shown = "; ".join(f"{place}: expected {_text(expected, place)}, got {_text(got, place)}" for place in places)
    return False, f"{what} in {count} of {mask.numel()} places, {shown}"


def _text(tensor: torch.Tensor, place: list[int]) -> str:
    value = tensor[tuple(place)].item()
    return f"{value:.9g}" if isinstance(value, float) and math.isfinite(value) else str(value)
