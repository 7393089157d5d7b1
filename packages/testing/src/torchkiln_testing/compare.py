"""Comparison with eager PyTorch: structure, types, dtype, shape, device, then values."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchkiln_testing.tolerance import OpClass, tolerance


def assert_same(expected: Any, got: Any, op_class: OpClass = OpClass.POINTWISE, where: str = "result") -> None:
    """Raises ``AssertionError`` unless ``got`` equals ``expected`` in all that a caller can see.

    Structure and Python types, dtype, shape, device and Python numbers are compared exactly; NaN equals NaN, and an infinity only itself.
    Elements are compared within the tolerance table; the sign of a zero counts where ``op_class`` is ``EXACT``.
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
    elif isinstance(want, (float, complex)):
        # By the rules of tensors, which know NaN and the sign of zero.
        dtype = torch.float64 if isinstance(want, float) else torch.complex128
        assert_same_tensor(torch.tensor(want, dtype=dtype), torch.tensor(have, dtype=dtype), OpClass.EXACT, where)
    else:
        assert want == have, f"{where}: expected {want!r}, got {have!r}"


def assert_same_tensor(want: torch.Tensor, have: torch.Tensor, op_class: OpClass, where: str = "tensor") -> None:
    """Raises ``AssertionError`` unless two tensors ``[*]`` agree in dtype, shape, device, layout and values."""
    for name in ("dtype", "shape", "device", "layout"):
        left, right = getattr(want, name), getattr(have, name)
        assert left == right, f"{where}: expected {name} {left}, got {right}"
    bound = tolerance(want.dtype, op_class)
    wanted, had = _parts(want), _parts(have)
    scale = 1.0
    if op_class is OpClass.MODEL and wanted.is_floating_point():
        finite = wanted[wanted.isfinite()]
        scale = max(1.0, float(finite.abs().max())) if finite.numel() else 1.0
    torch.testing.assert_close(
        have, want, rtol=bound.rtol, atol=bound.atol * scale, equal_nan=True, msg=lambda text: f"{where} ({op_class.value}): {text}"
    )
    if op_class is OpClass.EXACT and wanted.is_floating_point():
        zero = wanted == 0
        assert torch.equal(torch.signbit(wanted[zero]), torch.signbit(had[zero])), f"{where}: the sign of a zero differs"


def _parts(tensor: torch.Tensor) -> torch.Tensor:
    """Elements with the operators that a check needs: real and imaginary parts of complex numbers, float8 as float32."""
    tensor = tensor.detach()
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    return tensor.to(torch.float32) if tensor.is_floating_point() and tensor.element_size() == 1 else tensor
