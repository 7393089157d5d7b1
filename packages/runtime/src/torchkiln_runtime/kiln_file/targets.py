"""Functions that graphs call, by name: operators registered with torch, and a short list of Python functions on integers."""

from __future__ import annotations

import importlib
import math
import operator
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchkiln_core import PlanFormatError
from torchkiln_runtime.kiln_file.names import is_identifier

_OPERATOR_NAMES = (
    "getitem add sub mul floordiv mod truediv pow neg pos abs eq ne lt le gt ge and_ or_ xor not_ invert lshift rshift index".split()
)
_SYMBOLIC_NAMES = "sym_float sym_int sym_ite sym_max sym_min sym_not sym_sqrt sym_sum".split()

FUNCTIONS: Mapping[str, Callable[..., Any]] = types.MappingProxyType(
    {f"operator.{name}": getattr(operator, name) for name in _OPERATOR_NAMES}
    | {f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc", "sqrt")}
    | {f"torch.{name}": getattr(torch, name) for name in _SYMBOLIC_NAMES}
    | {"builtins.round": round}
)
"""Python functions that a graph may call: each computes on numbers, or indexes, and nothing else."""

_REGISTERED_BY: Mapping[str, str] = types.MappingProxyType(
    {"onnx": "torch.onnx.ops", "prims": "torch._prims", "quantized_decomposed": "torch.ao.quantization.fx._decomposed"}
)
"""Modules of torch that register their namespace only when they are imported."""

_REFUSED = frozenset({"aten.from_file.default"})
"""Registered operators that reach outside the process: ``from_file`` maps, and can create, any file."""


def function_name(target: Callable[..., Any]) -> str | None:
    """The name under which a file holds ``target``; ``None`` when files do not hold it."""
    if isinstance(target, torch._ops.OpOverload):
        name = str(target)
        return name if name not in _REFUSED and _registered(name) is target else None
    return next((name for name, function in FUNCTIONS.items() if function is target), None)


def function_named(name: str) -> Callable[..., Any]:
    """The function that ``function_name`` gave this name.

    Raises:
        PlanFormatError: It is not allowed, or no package has registered it in this process.
    """
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    if name in _REFUSED:
        raise PlanFormatError(f"operator {name}: not allowed in a saved program")
    found = _registered(name)
    if found is None:
        namespace = name.split(".", maxsplit=1)[0][:100]
        raise PlanFormatError(
            f"operator {name[:200]!r}: not registered with torch in this process",
            fix=f"before loading, import the package that registers the {namespace!r} operators, in the version used when saving",
        )
    return found


def _registered(name: str) -> torch._ops.OpOverload | None:
    parts = name.split(".")
    if len(parts) != 3 or not all(is_identifier(part) for part in parts):
        return None
    if parts[0] in _REGISTERED_BY:
        importlib.import_module(_REGISTERED_BY[parts[0]])
    namespace = getattr(torch.ops, parts[0])
    if type(namespace) is not torch._ops._OpNamespace:
        return None
    packet = getattr(namespace, parts[1], None)
    if not isinstance(packet, torch._ops.OpOverloadPacket) or parts[2] not in packet.overloads():  # type: ignore[no-untyped-call]
        return None
    overload = getattr(packet, parts[2])
    # TorchScript's own operators (print, save to a file) have overloads too, but are unknown to the dispatcher.
    known = isinstance(overload, torch._ops.OpOverload) and torch._C._dispatch_has_kernel(overload.name())  # type: ignore[no-untyped-call]
    return overload if known else None
