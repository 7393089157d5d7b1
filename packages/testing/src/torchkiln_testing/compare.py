"""Comparison with eager PyTorch: structure, types, dtype, shape, device, then values."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchkiln_testing.tolerance import OpClass, tolerance


def assert_same(expected: Any, got: Any, op_class: OpClass = OpClass.POINTWISE, where: str = "result") -> None:
    """Raises ``AssertionError`` unless ``got`` equals ``expected`` in all that a caller can see.

    Structure and Python types, dtype, shape and device are compared exactly, NaN equals NaN, infinities and the sign of exact zeros count
    where ``op_class`` is ``EXACT``. Values are compared within the tolerance table.
    """
    want_leaves, want_spec = pytree.tree_flatten_with_path(expected)
    got_leaves, got_spec = pytree.tree_flatten_with_path(got)
    assert want_spec == got_spec, f"{where}: expected structure {want_spec}, got {got_spec}"
    for (path, want), (_, have) in zip(want_leaves, got_leaves, strict=True):
        _assert_leaf(want, have, op_class, where + pytree.keystr(path))


def _assert_leaf(want: Any, have: Any, op_class: OpClass, where: str) -> None:
    assert type(want) is type(have) or (isinstance(want, torch.Tensor) and isinstance(have, torch.Tensor)), (
        f"{where}: expected {type(want).__name__}, got {type(have).__name__}"
    )
    if isinstance(want, torch.Tensor):
        assert_same_tensor(want, have, op_class, where)
    elif isinstance(want, float):
        assert want == have or (math.isnan(want) and math.isnan(have)), f"{where}: expected {want!r}, got {have!r}"
    else:
        assert want == have, f"{where}: expected {want!r}, got {have!r}"


def assert_same_tensor(want: torch.Tensor, have: torch.Tensor, op_class: OpClass, where: str = "tensor") -> None:
    """Raises ``AssertionError`` unless two tensors ``[*]`` agree in dtype, shape, device and values."""
    for name in ("dtype", "shape", "device"):
        left, right = getattr(want, name), getattr(have, name)
        assert left == right, f"{where}: expected {name} {left}, got {right}"
    bound = tolerance(want.dtype, op_class)
    scale = 1.0
    if op_class is OpClass.MODEL and want.numel() and want.dtype.is_floating_point:
        finite = want[want.isfinite()]
        scale = max(1.0, float(finite.abs().max())) if finite.numel() else 1.0
    torch.testing.assert_close(
        have, want, rtol=bound.rtol, atol=bound.atol * scale, equal_nan=True, msg=lambda text: f"{where} ({op_class.value}): {text}"
    )
    if op_class is OpClass.EXACT and want.dtype.is_floating_point:
        zero = want == 0
        assert torch.equal(torch.signbit(want[zero]), torch.signbit(have[zero])), f"{where}: the sign of a zero differs"
