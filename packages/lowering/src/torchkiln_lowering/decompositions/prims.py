"""``prims`` calls, which PyTorch's reference decompositions end in, back to ATen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._prims

from torchkiln_lowering.decompositions.precision import as_dtype
from torchkiln_lowering.decompositions.table import Decomposition

aten = torch.ops.aten
prims = torch.ops.prims

# fmt: off
_UNARY = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_not", "ceil", "cos", "cosh", "digamma", "erf", "erfc", "exp",
    "exp2", "expm1", "floor", "lgamma", "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sign", "signbit",
    "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
)
# fmt: on
_BINARY = {
    **{name: f"{name}.Tensor" for name in ("add", "sub", "mul", "fmod", "remainder")},
    **{f"bitwise_{name}": f"bitwise_{name}.Tensor" for name in ("and", "or", "xor")},
    "maximum": "maximum.default",
    "minimum": "minimum.default",
    "atan2": "atan2.default",
    "pow": "pow.Tensor_Tensor",
}

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def _overload(name: str) -> Callable[..., Any]:
    packet, overload = name.split(".")
    result: Callable[..., Any] = getattr(getattr(aten, packet), overload)
    return result


def _comparison(name: str) -> Callable[..., Any]:
    tensors, numbers = _overload(f"{name}.Tensor"), _overload(f"{name}.Scalar")

    def compare(a: torch.Tensor, b: torch.Tensor | float) -> Any:
        """The comparison with a tensor or a number, which references hand to ``prims`` as it is."""
        return tensors(a, b) if isinstance(b, torch.Tensor) else numbers(a, b)

    return compare


def divide(a: torch.Tensor, b: torch.Tensor) -> Any:
    """``prims.div``, which truncates on integers."""
    return aten.div.Tensor(a, b) if a.dtype.is_floating_point else aten.div.Tensor_mode(a, b, rounding_mode="trunc")


def convert(a: torch.Tensor, dtype: torch.dtype) -> Any:
    """``prims.convert_element_type``."""
    return aten._to_copy.default(a, dtype=dtype)


def broadcast(a: torch.Tensor, shape: Sequence[Any], broadcast_dimensions: Sequence[int]) -> Any:
    """``prims.broadcast_in_dim``: dimension ``i`` of ``a`` becomes dimension ``broadcast_dimensions[i]``."""
    for dim in range(len(shape)):
        if dim not in broadcast_dimensions:
            a = aten.unsqueeze.default(a, dim)
    return aten.expand.default(a, list(shape))


def total(inp: torch.Tensor, dims: Sequence[int], *, output_dtype: torch.dtype | None = None) -> torch.Tensor:
    """``prims.sum``."""
    out = aten.sum.dim_IntList(inp, list(dims), False, dtype=output_dtype or inp.dtype) if dims else inp
    return out if output_dtype is None else as_dtype(out, output_dtype)


def largest(inp: torch.Tensor, dims: Sequence[int], *, output_dtype: torch.dtype | None = None) -> torch.Tensor:
    """``prims.amax``."""
    return aten.amax.default(inp, list(dims)) if dims else inp


def spread(inp: torch.Tensor, dims: Sequence[int], correction: float = 1, *, output_dtype: torch.dtype | None = None) -> Any:
    """``prims.var``."""
    out = aten.var.correction(inp, list(dims), correction=correction)
    return out if output_dtype is None else as_dtype(out, output_dtype)


def product(inp: torch.Tensor, dims: Sequence[int], *, output_dtype: torch.dtype | None = None) -> torch.Tensor:
    """``prims.prod``."""
    for dim in sorted(dims, reverse=True):
        inp = aten.prod.dim_int(inp, dim, dtype=output_dtype or inp.dtype)
    return inp if output_dtype is None else as_dtype(inp, output_dtype)


def smallest(inp: torch.Tensor, dims: Sequence[int], *, output_dtype: torch.dtype | None = None) -> torch.Tensor:
    """``prims.amin``."""
    return aten.amin.default(inp, list(dims)) if dims else inp


PRIMS: dict[Callable[..., Any], Decomposition] = {
    **{getattr(prims, name).default: Decomposition(_overload(f"{name}.default")) for name in _UNARY},
    **{getattr(prims, name).default: Decomposition(_overload(target)) for name, target in _BINARY.items()},
    **{getattr(prims, name).default: Decomposition(_comparison(name)) for name in _COMPARISONS},
    prims.div.default: Decomposition(divide),
    prims.where.default: Decomposition(aten.where.self),
    prims.convert_element_type.default: Decomposition(convert),
    prims.broadcast_in_dim.default: Decomposition(broadcast),
    prims.transpose.default: Decomposition(aten.permute.default),
    prims.reshape.default: Decomposition(aten.reshape.default),
    prims.squeeze.default: Decomposition(aten.squeeze.dims),
    prims.cat.default: Decomposition(aten.cat.default),
    prims.view_of.default: Decomposition(aten.alias.default),
    prims.sum.default: Decomposition(total),
    prims.prod.default: Decomposition(product),
    prims.var.default: Decomposition(spread),
    prims.amax.default: Decomposition(largest),
    prims.amin.default: Decomposition(smallest),
}
