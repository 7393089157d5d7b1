"""How results are compared: bit by bit where nothing is computed, else within the precision of the dtype."""

from __future__ import annotations

import math

import torch

_RELATIVE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def difference(expected: torch.Tensor, got: torch.Tensor, *, exact: bool, relaxed: float) -> tuple[bool, str | None]:
    """Whether two tensors ``[*]`` are equal bit by bit (NaNs of any kind, zeros of one sign), and what is wrong, if anything is."""
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
    if exact:
        return _verdict(unequal, expected, got, "differs")
    wide, seen = expected.double(), got.double()
    relative = _RELATIVE[expected.dtype] * relaxed
    scale = wide[finite].abs().clamp(max=1e4).mean().item() if relaxed > 1 else 0.0
    bound = relative * torch.maximum(wide.abs(), torch.full_like(wide, max(scale, 1e-3)))
    _, wrong = _verdict(finite & ((wide - seen).abs() > bound), expected, got, f"differs by more than {relative:.1e}")
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
