"""A plan cache in a directory, shared by processes.

An entry is one file: a line that names the format, the SHA-256 of all that follows, the length of the record, the record of the plan
as JSON, and the serialized engine.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
from pathlib import Path

import torch

from torchkiln_core import Plan, PlanFormatError
from torchkiln_runtime.files import write_atomically
from torchkiln_runtime.kiln_file.fields import dump_json, parse_json
from torchkiln_runtime.kiln_file.plan_record import read_plan, write_plan
from torchkiln_runtime.kiln_file.tensor_bytes import memory_of

_log = logging.getLogger("torchkiln.runtime")
_MAGIC = b"torchkiln plan cache 1\n"
_DIGEST_BYTES = 32
_LENGTH_BYTES = 8
_KEY = re.compile(r"[0-9a-zA-Z_-]{1,200}")


class DiskPlanCache:
    """Keeps plans as files. Entries appear whole or not at all; one that is damaged is dropped with a warning and built again.

    Args:
        directory: Where the files are; it is made when the first plan is kept.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)

    def get(self, key: str) -> Plan | None:
        """The plan under ``key``, if it is kept and whole."""
        path = self._path(key)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            _log.warning("plan cache: %s cannot be read: %s", path, error)
            return None
        try:
            return _decode(bytearray(content), key)
        except PlanFormatError as error:
            _log.warning("plan cache: %s is damaged and is dropped: %s", path, error.message)
            with contextlib.suppress(OSError):
                path.unlink()
            return None

    def put(self, plan: Plan) -> None:
        """Keeps ``plan``; a full or read-only disk costs time only, so it is logged."""
        path = self._path(plan.key)
        try:
            write_atomically(path, _encode(plan))
        except OSError as error:
            _log.warning("plan cache: %s cannot be written: %s", path, error)

    def clear(self) -> None:
        """Removes every entry."""
        for path in self._directory.glob("*.plan"):
            path.unlink(missing_ok=True)

    def __len__(self) -> int:
        return sum(1 for _ in self._directory.glob("*.plan"))

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise PlanFormatError(f"plan cache: {key[:80]!r} is not the key of a plan")
        return self._directory / f"{key}.plan"


def _encode(plan: Plan) -> list[bytes | memoryview]:
    record = dump_json(write_plan(plan, "plan cache"))
    data = plan.data.contiguous()
    engine = memory_of(data)
    length = len(record).to_bytes(_LENGTH_BYTES, "little")
    digest = hashlib.sha256(length + record)
    digest.update(engine)
    return [_MAGIC, digest.digest(), length, record, engine]


def _decode(content: bytearray, key: str) -> Plan:
    view = memoryview(content)
    start = len(_MAGIC) + _DIGEST_BYTES
    body = start + _LENGTH_BYTES
    if bytes(view[: len(_MAGIC)]) != _MAGIC or len(view) < body:
        raise PlanFormatError("not an entry of this format, or truncated")
    if hashlib.sha256(view[start:]).digest() != bytes(view[len(_MAGIC) : start]):
        raise PlanFormatError("its checksum does not match")
    end = body + int.from_bytes(view[start:body], "little")
    if end > len(view):
        raise PlanFormatError("its record is truncated")
    record = parse_json(bytes(view[body:end]), "record of the plan")
    data = torch.frombuffer(content, dtype=torch.uint8, offset=end) if end < len(content) else torch.empty(0, dtype=torch.uint8)
    plan = read_plan(record, data)
    if plan.key != key:
        raise PlanFormatError(f"it holds the plan {plan.key[:80]!r}")
    return plan
