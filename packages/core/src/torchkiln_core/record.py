"""Networks as JSON and back, and the key that identifies what would be built."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import enum
import functools
import hashlib
import json
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

import sympy
import torch

from torchkiln_core import layers
from torchkiln_core.errors import InternalError, PlanFormatError
from torchkiln_core.layers.source import Constant
from torchkiln_core.network import Layer, Network, Step, Value
from torchkiln_core.size import Size, format_size, parse_size, symbols_of
from torchkiln_core.spec import DimRange

T = TypeVar("T")

DTYPES: Mapping[str, torch.dtype] = types.MappingProxyType(
    {
        str(dtype).removeprefix("torch."): dtype
        for dtype in (
            torch.float64,
            torch.float32,
            torch.float16,
            torch.bfloat16,
            torch.float8_e4m3fn,
            torch.float8_e5m2,
            torch.int64,
            torch.int32,
            torch.int16,
            torch.int8,
            torch.uint8,
            torch.bool,
            torch.complex64,
            torch.complex128,
        )
    }
)
"""Dtypes by the name that records use."""

_BODY = "network"
"""The key of the record of a body in the record of the layer that owns it."""
_LAYERS: Mapping[str, type[Layer]] = types.MappingProxyType(
    {name: item for name in layers.__all__ if isinstance(item := getattr(layers, name), type) and issubclass(item, Layer)}
)


def dtype_name(dtype: torch.dtype) -> str:
    """Name of a dtype in records, such as ``float16``."""
    return str(dtype).removeprefix("torch.")


def to_record(network: Network) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The network as JSON data, and its constants by the names that the data refers to (by reference)."""
    tensors: dict[str, torch.Tensor] = {}
    dims = {name: [dim.min, dim.opt, dim.max] for name, dim in network.dims.items()}
    return {"dims": dims} | _encode_network(network, tensors), tensors


def from_record(record: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Network:
    """Reads what ``to_record`` wrote.

    Raises:
        PlanFormatError: The data is not a network record.
    """
    try:
        return _read(record, tensors)
    except PlanFormatError:
        raise
    except (InternalError, KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise PlanFormatError(f"network record: {type(error).__name__}: {error}") from error


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of ``tensor`` ``[*]`` in a contiguous tensor on the host: itself where it is one."""
    return tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous()


def network_key(network: Network, options: Mapping[str, Any]) -> str:
    """Hash of the layers, constants and ranges, and of the options that change what is built.

    Names, source lines and the names of symbols do not enter: two programs that build the same engine share a key.
    """
    record, tensors = to_record(network)
    symbols = {name: f"d{index}" for index, name in enumerate(_symbols_in_order(network))}
    body = {
        "dims": {symbols.get(name, name): value for name, value in record["dims"].items() if name in symbols},
        **_Canonical(symbols).network(record),
        "options": {name: repr(value) for name, value in sorted(options.items())},
    }
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode())
    for tensor in tensors.values():
        _feed(digest, on_host(tensor))
    return digest.hexdigest()


class _Canonical:
    """Records without the names that programs give to values and symbols."""

    def __init__(self, symbols: Mapping[str, str]) -> None:
        self._renaming = {parse_size(old): parse_size(new) for old, new in symbols.items()}
        self._renamed: dict[str, str] = {}

    def network(self, record: Mapping[str, Any]) -> dict[str, Any]:
        names = {value: f"v{index}" for index, value in enumerate(_all_names(record))}
        return {
            "inputs": [self._value(value, names) for value in record["inputs"]],
            "steps": [
                [
                    step["layer"],
                    {name: self._attribute(value) for name, value in step["attributes"].items()},
                    [name and names[name] for name in step["inputs"]],
                    [self._value(value, names) for value in step["outputs"]],
                ]
                for step in record["steps"]
            ],
            "outputs": [[index, names[name]] for index, (_, name) in enumerate(record["outputs"])],
        }

    def _attribute(self, value: Any) -> Any:
        return {_BODY: self.network(value[_BODY])} if isinstance(value, dict) and _BODY in value else value

    def _value(self, value: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
        sizes = value["sizes"]
        return {
            "name": names[value["name"]],
            "dtype": value["dtype"],
            "shape": [self._size(size) for size in value["shape"]],
            "sizes": None if sizes is None else [self._size(size) for size in sizes],
        }

    def _size(self, size: int | str) -> int | str:
        if isinstance(size, int):
            return size
        if size not in self._renamed:
            self._renamed[size] = format_size(sympy.sympify(parse_size(size)).xreplace(self._renaming))
        return self._renamed[size]


def _all_names(record: Mapping[str, Any]) -> list[str]:
    return [value["name"] for value in record["inputs"]] + [value["name"] for step in record["steps"] for value in step["outputs"]]


def _symbols_in_order(network: Network) -> list[str]:
    """By first appearance; of the symbols of one dimension, those first that another dimension tells apart."""
    pending = [set(symbols_of(size)) for value in network.inputs for size in value.shape]
    found: list[str] = []
    while pending := [left for names in pending if (left := names.difference(found))]:
        found += sorted(next((names for names in pending if len(names) == 1), pending[0]))
    return found


def _feed(digest: hashlib._Hash, dense: torch.Tensor) -> None:
    """Hashes the elements of a contiguous host tensor ``[*]`` in place."""
    size_bytes = dense.numel() * dense.element_size()
    if size_bytes:
        digest.update((ctypes.c_char * size_bytes).from_address(dense.data_ptr()))


def _value_record(value: Value) -> dict[str, Any]:
    return {
        "name": value.name,
        "dtype": dtype_name(value.dtype),
        "shape": [_size_record(size) for size in value.shape],
        "sizes": None if value.sizes is None else [_size_record(size) for size in value.sizes],
    }


def _size_record(size: Size) -> int | str:
    return size if isinstance(size, int) else format_size(size)


def _encode_network(network: Network, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {
        "inputs": [_value_record(value) for value in network.inputs],
        "steps": [
            {
                "name": step.name,
                "layer": step.layer.kind(),
                "attributes": _encode_fields(step.layer, tensors),
                "inputs": [None if value is None else value.name for value in step.inputs],
                "outputs": [_value_record(value) for value in step.outputs],
                "where": step.where,
                "weight": step.weight,
            }
            for step in network.steps
        ],
        "outputs": [[name, value.name] for name, value in network.outputs],
    }


def _encode_fields(item: Any, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {field.name: _encode(getattr(item, field.name), tensors) for field in dataclasses.fields(item)}


def _encode(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    match value:
        case enum.Enum():
            return value.value
        case torch.dtype():
            return dtype_name(value)
        case float():
            return {"float": value.hex()}
        case tuple():
            return [_encode(item, tensors) for item in value]
        case torch.Tensor():
            name = f"constant_{len(tensors)}"
            tensors[name] = value
            return name
        case Network():
            return {_BODY: _encode_network(value, tensors)}
        case _ if dataclasses.is_dataclass(value):
            return _encode_fields(value, tensors)
    return value


@dataclasses.dataclass(frozen=True, slots=True)
class _Source:
    """What a network and the bodies within it share in a record."""

    tensors: Mapping[str, torch.Tensor]
    dims: dict[str, DimRange]


def _read(record: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> Network:
    source = _Source(tensors, {})
    for name, bounds in record["dims"].items():
        source.dims[name] = DimRange(name, *_decode(tuple[int, ...], bounds, source))
    return _read_network(record, source)


def _read_network(record: Mapping[str, Any], source: _Source) -> Network:
    network = Network()
    network.dims = source.dims
    values: dict[str, Value] = {}
    for item in record["inputs"]:
        network.inputs.append(_read_value(item, values, source))
    for item in record["steps"]:
        network.steps.append(_read_step(item, values, source))
    for name, value in record["outputs"]:
        network.output(name, values[value])
    return network


def _read_step(item: Mapping[str, Any], values: dict[str, Value], source: _Source) -> Step:
    layer = _read_layer(item["layer"], item["attributes"], source)
    inputs = tuple(None if name is None else values[name] for name in item["inputs"])
    layer.check(inputs)
    outputs = tuple(_read_value(output, values, source) for output in item["outputs"])
    if isinstance(layer, Constant):
        (value,) = outputs
        if (value.dtype, value.shape) != (layer.tensor.dtype, tuple(layer.tensor.shape)):
            raise PlanFormatError(f"network record: expected {value!r}, got {layer!r}")
        value.constant = layer.tensor
    where, weight = (_decode(str | None, item[key], source) for key in ("where", "weight"))
    return Step(_decode(str, item["name"], source), layer, inputs, outputs, where, weight)


def _read_value(item: Mapping[str, Any], values: dict[str, Value], source: _Source) -> Value:
    shape = tuple(size if isinstance(size, int) else parse_size(size) for size in item["shape"])
    sizes = None if item["sizes"] is None else tuple(size if isinstance(size, int) else parse_size(size) for size in item["sizes"])
    if item["name"] in values:
        raise PlanFormatError(f"network record: {item['name']} stands twice")
    value = Value(_decode(str, item["name"], source), DTYPES[item["dtype"]], shape, sizes=sizes)
    values[value.name] = value
    return value


def _read_layer(kind: str, attributes: Mapping[str, Any], source: _Source) -> Layer:
    if kind not in _LAYERS:
        raise PlanFormatError(f"network record: unknown layer {kind!r}")
    return _decode_fields(_LAYERS[kind], attributes, source)


def _decode_fields(kind: type[T], attributes: Mapping[str, Any], source: _Source) -> T:
    hints: dict[str, Any] = _hints(typing.cast(typing.Hashable, kind))
    return kind(**{name: _decode(hints[name], value, source) for name, value in attributes.items()})


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _decode(hint: Any, value: Any, source: _Source) -> Any:
    """What ``_encode`` made ``value`` of, checked against the type of the attribute.

    Raises:
        TypeError, KeyError, ValueError: The value is not of that type.
    """
    if hint is torch.Tensor:
        return source.tensors[value]
    if hint is Network or dataclasses.is_dataclass(hint):
        return _decode_object(hint, value, source)
    if hint is torch.dtype:
        return DTYPES[value]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(value)
    if hint is float and isinstance(value, dict):
        return float.fromhex(value["float"])
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise TypeError(f"expected a list, got {value!r}")
        return tuple(_decode(typing.get_args(hint)[0], item, source) for item in value)
    if isinstance(hint, types.UnionType):
        return _decode_union(hint, value, source)
    if not isinstance(value, (int, float) if hint is float else hint) or (isinstance(value, bool) and hint is not bool):
        raise TypeError(f"expected {hint.__name__}, got {value!r}")
    return value


def _decode_object(hint: Any, value: Any, source: _Source) -> Any:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, got {type(value).__name__}")
    return _read_network(value[_BODY], source) if hint is Network else _decode_fields(hint, value, source)


def _decode_union(hint: types.UnionType, value: Any, source: _Source) -> Any:
    for arm in typing.get_args(hint):
        with contextlib.suppress(TypeError):
            return _decode(arm, value, source)
    raise TypeError(f"expected {hint}, got {value!r}")
