"""Products of two tensors and a weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchkiln_core.call import OpCall
from torchkiln_lowering.decompositions.precision import as_dtype, widened
from torchkiln_lowering.decompositions.table import Decomposition

aten = torch.ops.aten


def bilinear(input1: torch.Tensor, input2: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    """``bilinear``: ``[*, C], [*, D], [O, C, D] -> [*, O]``, one product by the weight and one for each row.

    Source: ATen/native/Linear.cpp.
    """
    outputs, first, second = weight.shape
    left, right, wide = (widened(item) for item in (input1, input2, weight))
    table = aten.reshape.default(aten.permute.default(wide, [0, 2, 1]), [outputs * second, first])
    rows = aten.reshape.default(aten.linear.default(left, table), [*input1.shape[:-1], outputs, second])
    out = aten.squeeze.dim(aten.matmul.default(rows, aten.unsqueeze.default(right, -1)), -1)
    return as_dtype(out if bias is None else aten.add.Tensor(out, widened(bias)), input1.dtype)


def trilinear(i1: torch.Tensor, i2: torch.Tensor, i3: torch.Tensor, *_: Any) -> Any:
    """``_trilinear`` as ``bilinear`` calls it, ``[N, C], [O, C, D], [N, D] -> [N, O]``."""
    return bilinear(i1, i3, i2)


def _is_of_bilinear(call: OpCall) -> bool:
    places = [list(call.arguments[name]) for name in ("expand1", "expand2", "expand3", "sumdim")]
    if places != [[1, 3], [0], [1, 2], [2, 3]]:
        return False
    return _floating_with_known(call, ("i1", "i2", "i3"), "i2")


def _multiplies(call: OpCall) -> bool:
    names = ("input1", "input2", "weight", "bias")
    return _floating_with_known(call, tuple(name for name in names if call.arguments[name] is not None), "weight")


def _floating_with_known(call: OpCall, names: tuple[str, ...], weight: str) -> bool:
    """One floating dtype, and a weight that has elements and whose sizes are known."""
    dtypes = {call.arguments[name].meta["val"].dtype for name in names}
    sizes = call.arguments[weight].meta["val"].shape
    known = all(isinstance(size, int) and size > 0 for size in sizes)
    return known and len(dtypes) == 1 and all(dtype.is_floating_point for dtype in dtypes)


BILINEAR: dict[Callable[..., Any], Decomposition] = {
    aten.bilinear.default: Decomposition(bilinear, _multiplies),
    aten._trilinear.default: Decomposition(trilinear, _is_of_bilinear),
}
