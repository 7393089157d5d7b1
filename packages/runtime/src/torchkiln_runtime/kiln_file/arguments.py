"""Arguments of graph nodes as JSON and back.

``None``, booleans, strings, lists and integers below 2**53 stand for themselves; everything else is an object with one field that names
its kind. Floats are hexadecimal text, so that every value, NaN, infinities and -0.0 come back as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.fx

from torchkiln_core import PlanFormatError
from torchkiln_runtime.kiln_file.fields import expect, look_up
from torchkiln_runtime.kiln_file.names import DTYPES, LAYOUTS, MEMORY_FORMATS

_EXACT_IN_JSON = 1 << 53


def encode_argument(value: Any) -> Any:
    """JSON data of an argument.

    Raises:
        TypeError: The argument is of a kind that files do not hold.
    """
    match value:
        case None | bool():
            return value
        case torch.fx.Node():
            return {"node": value.name}
        case slice():
            return {"slice": [encode_argument(part) for part in (value.start, value.stop, value.step)]}
        case tuple():
            _no_named_tuple(value)
            return {"tuple": [encode_argument(item) for item in value]}
        case list():
            return [encode_argument(item) for item in value]
        case dict():
            return {"dict": [[_encode_key(key), encode_argument(item)] for key, item in value.items()]}
        case _:
            return _encode_leaf(value)


def _encode_leaf(value: Any) -> Any:
    if value is Ellipsis:
        return {"ellipsis": None}
    if type(value) is str:
        return value
    if type(value) is int:
        return value if abs(value) < _EXACT_IN_JSON else {"int": hex(value)}
    if type(value) is float:
        return {"float": value.hex()}
    if type(value) is complex:
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    for kind, table in (("dtype", DTYPES), ("layout", LAYOUTS), ("memory_format", MEMORY_FORMATS)):
        name = str(value).removeprefix("torch.")
        if table.get(name) is value:
            return {kind: name}
    raise TypeError(f"an argument of type {type(value).__name__} ({str(value)[:80]})")


def _encode_key(key: Any) -> str | int:
    if type(key) is str or (type(key) is int and abs(key) < _EXACT_IN_JSON):
        return key
    raise TypeError(f"a dictionary key of type {type(key).__name__}")


def _no_named_tuple(value: tuple[Any, ...]) -> None:
    if type(value) not in (tuple, torch.Size):
        raise TypeError(f"an argument of type {type(value).__name__}")


def decode_argument(data: Any, nodes: Mapping[str, torch.fx.Node]) -> Any:
    """The argument that ``encode_argument`` wrote; ``nodes`` are those that stand before it in the graph.

    Raises:
        PlanFormatError: The data is something else.
        ValueError, TypeError, OverflowError, RuntimeError: A number or a device in it cannot be read.
    """
    if data is None or isinstance(data, (bool, int, str)):
        return data
    if isinstance(data, list):
        return [decode_argument(item, nodes) for item in data]
    if not isinstance(data, dict) or len(data) != 1:
        raise PlanFormatError(f"argument: expected one kind and its value, got {type(data).__name__} of {str(data)[:80]}")
    ((kind, value),) = data.items()
    return _decode_kind(kind, value, nodes)


def _decode_kind(kind: str, value: Any, nodes: Mapping[str, torch.fx.Node]) -> Any:
    if kind in _LEAVES:
        return _LEAVES[kind](value)
    match kind:
        case "node":
            return look_up(nodes, expect(value, str, kind), "node")
        case "tuple":
            return tuple(decode_argument(item, nodes) for item in expect(value, list, kind))
        case "slice":
            start, stop, step = expect(value, list, kind)
            return slice(*(decode_argument(part, nodes) for part in (start, stop, step)))
        case "dict":
            return {key: decode_argument(item, nodes) for key, item in expect(value, list, kind)}
        case _:
            raise PlanFormatError(f"argument: unknown kind {kind[:40]!r}")


def _decode_complex(value: Any) -> complex:
    real, imaginary = expect(value, list, "complex")
    return complex(float.fromhex(real), float.fromhex(imaginary))


_LEAVES: Mapping[str, Callable[[Any], Any]] = {
    "ellipsis": lambda _: Ellipsis,
    "int": lambda value: int(expect(value, str, "int"), 16),
    "float": lambda value: float.fromhex(expect(value, str, "float")),
    "complex": _decode_complex,
    "device": lambda value: torch.device(expect(value, str, "device")),
    "dtype": lambda value: look_up(DTYPES, expect(value, str, "dtype"), "dtype"),
    "layout": lambda value: look_up(LAYOUTS, expect(value, str, "layout"), "layout"),
    "memory_format": lambda value: look_up(MEMORY_FORMATS, expect(value, str, "memory_format"), "memory format"),
}
