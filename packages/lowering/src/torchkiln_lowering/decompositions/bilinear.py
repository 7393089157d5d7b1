"""Products of two tensors and a weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from torchkiln_core.call import OpCall
from torchkiln_core.rejection import Requires
from torchkiln_lowering.decompositions.precision import as_dtype, widened
from torchkiln_lowering.decompositions.table import Decomposition
from torchkiln_lowering.metadata import known_and_not_empty

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
    return places == [[1, 3], [0], [1, 2], [2, 3]]


def _has_floats(call: OpCall) -> bool:
    dtypes = {item.meta["val"].dtype for item in call.arguments.values() if isinstance(item, torch.fx.Node)}
    return len(dtypes) == 1 and all(dtype.is_floating_point for dtype in dtypes)


def _knows(weight: str) -> Requires:
    def is_known(call: OpCall) -> bool:
        return known_and_not_empty(call.arguments[weight].meta["val"].shape)

    return Requires("a weight of known sizes, none of them 0", is_known)


_FLOATS = Requires("one floating-point dtype", _has_floats)
_OF_BILINEAR = Requires("the dimensions that bilinear gives it", _is_of_bilinear)

BILINEAR: dict[Callable[..., Any], Decomposition] = {
    aten.bilinear.default: Decomposition(bilinear, limits=(_FLOATS, _knows("weight"))),
    aten._trilinear.default: Decomposition(trilinear, limits=(_OF_BILINEAR, _FLOATS, _knows("i2"))),
}
