"""The calling convention as JSON data and back."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.fx
from torch.utils import _pytree as pytree

from torchkiln.aliases import Epilogue, OutputRef
from torchkiln.checks import ArgumentCheck
from torchkiln.convention import CallingConvention
from torchkiln.size_guards import guard_from_record, guard_to_record
from torchkiln_core import DimRange, PlanError, PlanFormatError
from torchkiln_core.record import DTYPES, dtype_name
from torchkiln_core.size import format_size, parse_size


def convention_to_record(convention: CallingConvention) -> dict[str, Any]:
    """JSON data of a calling convention, without the epilogue's graph.

    Raises:
        PlanError: The structure of the arguments or the result holds a type that has no registered name, or an argument such a dtype.
    """
    return {
        "in_spec": _dump_spec(convention.in_spec),
        "out_spec": _dump_spec(convention.out_spec),
        "parameter_names": None if convention.parameter_names is None else list(convention.parameter_names),
        "checks": [_check_record(check) for check in convention.checks],
        "flat_inputs": list(convention.flat_inputs),
        "flat_positions": list(convention.flat_positions),
        "mutated_buffers": list(convention.mutated_buffers),
        "buffer_inputs": list(convention.buffer_inputs),
        "copies": [list(copy) for copy in convention.copies],
        "outputs": [_ref_record(ref) for ref in convention.outputs],
        "epilogue": None if convention.epilogue is None else [_ref_record(ref) for ref in convention.epilogue.sources],
        "guards": [guard_to_record(guard) for guard in convention.guards],
    }


def convention_from_record(record: Mapping[str, Any], epilogue: torch.fx.GraphModule | None, device: torch.device) -> CallingConvention:
    """Reads what ``convention_to_record`` wrote; tensor arguments are expected on ``device``.

    Raises:
        PlanFormatError: Not a calling convention, or a type that is not registered in this process.
    """
    sources = record["epilogue"]
    if (sources is None) != (epilogue is None):
        raise PlanFormatError("calling convention: the graph of aliasing outputs is missing or unexpected")
    return CallingConvention(
        in_spec=_load_spec(record["in_spec"]),
        out_spec=_load_spec(record["out_spec"]),
        parameter_names=None if record["parameter_names"] is None else tuple(map(str, record["parameter_names"])),
        checks=tuple(_read_check(check, device) for check in record["checks"]),
        flat_inputs=tuple(map(str, record["flat_inputs"])),
        flat_positions=tuple(map(int, record["flat_positions"])),
        mutated_buffers=tuple(map(str, record["mutated_buffers"])),
        buffer_inputs=tuple(map(str, record["buffer_inputs"])),
        copies=tuple((str(kind), int(index)) for kind, index in record["copies"]),
        outputs=tuple(map(_read_ref, record["outputs"])),
        epilogue=None if epilogue is None else Epilogue(epilogue, tuple(map(_read_ref, sources))),
        guards=tuple(map(guard_from_record, record["guards"])),
    )


def _dump_spec(spec: pytree.TreeSpec) -> str:
    fix = "use tuples, dicts, or types registered with torch.utils._pytree under a serialized_type_name"
    tuples = [key for key in _keys(spec) if isinstance(key, tuple)]
    if tuples:
        raise PlanError(f"the structure of arguments or results cannot be saved: a dict has the key {tuples[0]}, a tuple", fix=fix)
    try:
        return pytree.treespec_dumps(spec)
    except (NotImplementedError, TypeError) as error:
        raise PlanError(f"the structure of arguments or results cannot be saved: {error}", fix=fix) from error


def _keys(spec: pytree.TreeSpec) -> Iterator[Any]:
    """The keys of all dicts. JSON would give a tuple among them back as a list."""
    if spec.type in (dict, OrderedDict):
        yield from spec.context
    elif spec.type is defaultdict:
        yield from spec.context[1]
    for child in spec.children():
        yield from _keys(child)


def _load_spec(text: str) -> pytree.TreeSpec:
    try:
        return pytree.treespec_loads(text)
    except (NotImplementedError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise PlanFormatError(
            f"the structure of arguments or results cannot be read: {error}", fix="import the package that defines its types before loading"
        ) from error


def _check_record(check: ArgumentCheck) -> dict[str, Any]:
    if check.dtype is not None and check.dtype not in DTYPES.values():
        raise PlanError(
            f"argument {check.name}: expected a dtype that a file can name, got {check.dtype}", fix="convert the argument first"
        )
    return {
        "name": check.name,
        "kind": check.kind,
        "dtype": None if check.dtype is None else dtype_name(check.dtype),
        "shape": [size if isinstance(size, int) else format_size(size) for size in check.shape],
        "dims": {name: [dim.min, dim.opt, dim.max] for name, dim in check.dims.items()},
        "constant": _constant_record(check.constant),
    }


def _read_check(record: Mapping[str, Any], device: torch.device) -> ArgumentCheck:
    is_tensor = record["kind"] == "tensor"
    if record["kind"] not in ("tensor", "int", "constant"):
        raise PlanFormatError(f"argument {record['name']}: unknown kind {record['kind']!r}")
    return ArgumentCheck(
        name=str(record["name"]),
        kind=str(record["kind"]),
        dtype=DTYPES[record["dtype"]] if is_tensor else None,
        device=device if is_tensor else None,
        shape=tuple(size if isinstance(size, int) else parse_size(size) for size in record["shape"]),
        dims={name: DimRange(name, *bounds) for name, bounds in record["dims"].items()},
        constant=_read_constant(record["constant"]),
    )


def _ref_record(ref: OutputRef) -> list[Any]:
    return [ref.kind, ref.index, _constant_record(ref.value)]


def _read_ref(record: Any) -> OutputRef:
    kind, index, value = record
    if kind not in ("argument", "buffer", "result", "alias", "constant"):
        raise PlanFormatError(f"output: unknown source {kind!r}")
    return OutputRef(kind, int(index), _read_constant(value))


def _constant_record(value: Any) -> Any:
    """Floats by their hexadecimal form, so that NaN and infinities survive JSON; dtypes and devices by name."""
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, torch.dtype):
        return {"dtype": dtype_name(value)}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    return value


def _read_constant(record: Any) -> Any:
    match record:
        case {"float": str(text)}:
            return float.fromhex(text)
        case {"dtype": str(text)}:
            return DTYPES[text]
        case {"device": str(text)}:
            return torch.device(text)
        case None | bool() | int() | str():
            return record
        case _:
            raise PlanFormatError(f"calling convention: {record!r} is not a plain value")
