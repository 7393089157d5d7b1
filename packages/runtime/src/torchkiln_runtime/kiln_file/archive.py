"""The container: what is the same for writing and reading."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import IO

from torchkiln_core import PlanFormatError
from torchkiln_runtime.kiln_file.tensor_bytes import CHUNK_BYTES

FORMAT = "torchkiln.kiln"
VERSION = 1
MANIFEST = "manifest.json"
PROGRAM = "program.json"
TENSORS = "tensors.safetensors"

_COMMENT = re.compile(rb"torchkiln\.kiln v(\d{4}) sha256:([0-9a-f]{64})")
COMMENT_BYTES = 92


def comment_of(digest: str) -> bytes:
    """The zip comment, which stands at the very end of a file."""
    return b"%s v%04d sha256:%s" % (FORMAT.encode(), VERSION, digest.encode())


def read_comment(comment: bytes) -> str:
    """The digest in a zip comment.

    Raises:
        PlanFormatError: The comment is not one of ours, or of a newer format.
    """
    found = _COMMENT.fullmatch(comment)
    if found is None:
        raise PlanFormatError("expected the end of a .kiln file, got something else: it is truncated, altered or of another kind")
    check_version(int(found[1]))
    return found[2].decode()


def check_version(version: int) -> None:
    """Refuses a format that this release does not read.

    Raises:
        PlanFormatError: The version is not ours.
    """
    if version > VERSION:
        raise PlanFormatError(f"format version {version}: this release reads version {VERSION}", fix="upgrade torchkiln")
    if version < 1:
        raise PlanFormatError(f"format version {version}: there is no such version")


def digest_outside(file: IO[bytes], members: Iterable[tuple[int, int]], end: int) -> str:
    """The sha256 of all bytes before ``end`` that lie in none of the members, given as first byte and end, in rising order.

    Raises:
        PlanFormatError: Members overlap or reach beyond ``end``.
    """
    digest = hashlib.sha256()
    position = 0
    for start, stop in [*members, (end, end)]:
        if not position <= start <= stop:
            raise PlanFormatError("members of the file overlap or reach beyond its end")
        file.seek(position)
        while position < start:
            chunk = file.read(min(CHUNK_BYTES, start - position))
            if not chunk:
                raise PlanFormatError("the file ends early")
            digest.update(chunk)
            position += len(chunk)
        position = stop
    return digest.hexdigest()
