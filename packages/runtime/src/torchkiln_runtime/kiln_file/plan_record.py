"""Plans and rejections as JSON data and back; the bytes of a plan are a member of their own."""

from __future__ import annotations

from typing import Any

import torch

from torchkiln_core import Binding, Plan, PlanError, PlanFormatError, Rejection, Size, Target
from torchkiln_core.record import dtype_name
from torchkiln_core.size import format_size, parse_size
from torchkiln_runtime.kiln_file.fields import expect, look_up, take, take_list, take_text
from torchkiln_runtime.kiln_file.names import DTYPES


def plan_member(segment: str, index: int) -> str:
    """Name of the member that holds the bytes of a segment's plan."""
    return f"plans/{segment}/{index}.plan"


def write_plan(plan: Plan, title: str) -> dict[str, Any]:
    """The record of a plan.

    Raises:
        PlanError: Its data is not uint8 ``[size]`` on the host, or one of its sizes is not in the grammar of sizes.
    """
    data = plan.data
    if type(data) is not torch.Tensor or data.dtype != torch.uint8 or data.dim() != 1 or data.device.type != "cpu":
        raise PlanError(f"{title}: expected a plan in a uint8 tensor of rank 1 on the host, got {data.dtype} on {data.device}")
    return {
        "inputs": [_write_binding(binding, title) for binding in plan.inputs],
        "outputs": [_write_binding(binding, title) for binding in plan.outputs],
        "symbols": [list(symbol) for symbol in plan.symbols],
        "target": {"library": plan.target.library, "version": plan.target.version, "gpus": list(plan.target.gpus)},
        "key": plan.key,
        "build_ms": float(plan.build_ms).hex(),
        "allow_tf32": plan.allow_tf32,
        **({"profile": plan.profile} if plan.profile else {}),
        **({"inner_sizes": [_write_size(size, title) for size in plan.inner_sizes]} if plan.inner_sizes else {}),
    }


def read_plan(record: Any, data: torch.Tensor) -> Plan:
    """The plan that ``write_plan`` described.

    Raises:
        PlanFormatError: The record is something else.
    """
    target = take(record, "target", dict)
    return Plan(
        data=data,
        inputs=tuple(_read_binding(item) for item in take(record, "inputs", list)),
        outputs=tuple(_read_binding(item) for item in take(record, "outputs", list)),
        symbols=tuple(_read_symbol(item) for item in take_list(record, "symbols", list)),
        target=Target(take(target, "library", str), take(target, "version", str), tuple(take_list(target, "gpus", str))),
        key=take(record, "key", str),
        build_ms=float.fromhex(take(record, "build_ms", str)),
        allow_tf32=take(record, "allow_tf32", bool),
        profile=take(record, "profile", str) if "profile" in record else "",
        inner_sizes=tuple(map(_read_size, take(record, "inner_sizes", list))) if "inner_sizes" in record else (),
    )


def write_rejection(rejection: Rejection) -> dict[str, Any]:
    """The record of a rejection."""
    return {
        "target": rejection.target,
        "node": rejection.node,
        "rule": rejection.rule,
        "message": rejection.message,
        "where": rejection.where,
    }


def read_rejection(record: Any) -> Rejection:
    """The rejection that ``write_rejection`` described.

    Raises:
        PlanFormatError: The record is something else.
    """
    target, node, rule, message = (take(record, name, str) for name in ("target", "node", "rule", "message"))
    return Rejection(target, node, rule, message, take_text(record, "where"))


def _write_binding(binding: Binding, title: str) -> dict[str, Any]:
    if binding.dtype not in DTYPES.values():
        raise PlanError(f"{title}: binding {binding.name} has the unsupported dtype {binding.dtype}")
    return {
        "name": binding.name,
        "dtype": dtype_name(binding.dtype),
        "shape": [_write_size(size, f"{title}, binding {binding.name}") for size in binding.shape],
    }


def _write_size(size: Size, title: str) -> int | str:
    if isinstance(size, int):
        return size
    text = format_size(size)
    try:
        parse_size(text)
    except PlanFormatError as error:
        raise PlanError(f"{title}: {error.message}") from error
    return text


def _read_binding(record: Any) -> Binding:
    dtype = look_up(DTYPES, take(record, "dtype", str), "dtype")
    return Binding(take(record, "name", str), dtype, tuple(map(_read_size, take(record, "shape", list))))


def _read_size(record: Any) -> Size:
    return parse_size(record) if isinstance(record, str) else expect(record, int, "size")


def _read_symbol(item: list[Any]) -> tuple[str, int, int]:
    if len(item) != 3:
        raise PlanFormatError(f"plan: expected a symbol, an input and a dimension, got {len(item)} items")
    return expect(item[0], str, "symbol"), expect(item[1], int, "input"), expect(item[2], int, "dimension")
