"""Strict JSON, and typed access to what was read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from torchkiln_core import PlanFormatError

T = TypeVar("T")


def dump_json(data: Any) -> bytes:
    """ASCII text of JSON data.

    Raises:
        ValueError: The data holds NaN or an infinity, or refers to itself.
        TypeError: The data holds something that is not JSON.
    """
    return json.dumps(data, allow_nan=False, separators=(",", ":")).encode("ascii")


def parse_json(text: bytes, name: str) -> Any:
    """Reads JSON that has no duplicate keys and no NaN.

    Raises:
        PlanFormatError: The text is something else, or is nested too deeply.
    """
    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise PlanFormatError(f"{name}: expected JSON, got {type(error).__name__}: {str(error)[:200]}") from error


def take(record: Any, name: str, kind: type[T]) -> T:
    """The field ``name`` of a JSON object, which must have the type ``kind`` (``bool`` is no ``int``).

    Raises:
        PlanFormatError: The field is missing or of another type.
    """
    if not isinstance(record, dict) or name not in record:
        raise PlanFormatError(f"record: expected an object with the field {name!r}, got {_shown(record)}")
    return expect(record[name], kind, name)


def expect(value: Any, kind: type[T], name: str) -> T:
    """``value``, which must have the type ``kind``.

    Raises:
        PlanFormatError: It has another type.
    """
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise PlanFormatError(f"record: expected {name!r} to be {kind.__name__}, got {_shown(value)}")
    return value


def take_list(record: Any, name: str, kind: type[T]) -> list[T]:
    """The field ``name``, a list of ``kind``."""
    return [expect(item, kind, name) for item in take(record, name, list)]


def take_text(record: Any, name: str) -> str | None:
    """The field ``name``, a string or null."""
    return None if isinstance(record, dict) and record.get(name, "") is None else take(record, name, str)


def look_up(table: Mapping[str, T], name: str, what: str) -> T:
    """The entry of an allow-list.

    Raises:
        PlanFormatError: There is none of that name.
    """
    if name not in table:
        raise PlanFormatError(f"{what} {name[:100]!r}: unknown; expected one of {', '.join(table)}")
    return table[name]


def _shown(value: Any) -> str:
    # Not repr: a record may be huge, or nested more deeply than repr can follow.
    return f"an object with the fields {list(value)[:20]}" if isinstance(value, dict) else type(value).__name__


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("an object has a key twice")
    return result


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
