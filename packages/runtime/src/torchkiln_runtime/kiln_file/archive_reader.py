"""Reads the container, and checks each byte of it: members against the manifest, the manifest and all the rest against the digest."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from torchkiln_core import PlanFormatError
from torchkiln_runtime.kiln_file.archive import COMMENT_BYTES, FORMAT, MANIFEST, check_version, digest_outside, read_comment
from torchkiln_runtime.kiln_file.fields import parse_json, take
from torchkiln_runtime.kiln_file.tensor_bytes import CHUNK_BYTES, memory_of

_A_FILE = "give the path of a file that torchkiln.save wrote"

_LOCAL_HEADER = struct.Struct("<4s22xHH")


@dataclass(frozen=True, slots=True)
class _Span:
    """Where the bytes of a member lie in the file."""

    start: int
    stop: int


class MemberReader:
    """One member, read from front to back. Nothing read from it counts before ``finish`` has compared the digest."""

    def __init__(self, file: IO[bytes], name: str, size: int, expected: str) -> None:
        self.size = size
        self._file = file
        self._name = name
        self._expected = expected
        self._left = size
        self._digest = hashlib.sha256()

    def read(self, count: int) -> bytes:
        """The next ``count`` bytes.

        Raises:
            PlanFormatError: The member has no more.
        """
        buffer = bytearray(self._take(count))
        self._fill(memoryview(buffer))
        return bytes(buffer)

    def read_tensor(self, count: int) -> torch.Tensor:
        """The next ``count`` bytes as a new tensor, uint8 ``[count]`` on the host."""
        result = torch.empty(self._take(count), dtype=torch.uint8, device="cpu")
        self._fill(memory_of(result))
        return result

    def finish(self) -> None:
        """Compares what was read with the manifest.

        Raises:
            PlanFormatError: Bytes are left, or the digest differs.
        """
        if self._left or self._digest.hexdigest() != self._expected:
            raise PlanFormatError(f"member {self._name}: its content does not match its checksum")

    def _take(self, count: int) -> int:
        if not 0 <= count <= self._left:
            raise PlanFormatError(f"member {self._name}: expected {count} more bytes, got {self._left}")
        self._left -= count
        return count

    def _fill(self, view: memoryview) -> None:
        for start in range(0, len(view), CHUNK_BYTES):
            chunk = view[start : start + CHUNK_BYTES]
            if self._file.readinto(chunk) != len(chunk):  # type: ignore[attr-defined]
                raise PlanFormatError(f"member {self._name}: the file ends early")
            self._digest.update(chunk)


class ArchiveReader:
    """A ``.kiln`` container on an open file.

    Raises:
        PlanFormatError: It is not one, or is damaged outside its members.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._spans = _check_structure(file)
        manifest = parse_json(self._manifest_text(), MANIFEST)
        if take(manifest, "format", str) != FORMAT:
            raise PlanFormatError(f"manifest: expected format {FORMAT!r}")
        check_version(take(manifest, "version", int))
        self._members: dict[str, Any] = take(manifest, "members", dict)
        self._compare_members()

    @property
    def members(self) -> frozenset[str]:
        """Names of all members but the manifest."""
        return frozenset(self._members)

    @contextlib.contextmanager
    def member(self, name: str) -> Iterator[MemberReader]:
        """A member to be read to its end within the block.

        Raises:
            PlanFormatError: There is no such member, or its content is not what was written.
        """
        if name not in self._members:
            raise PlanFormatError(f"member {name[:100]}: missing")
        span = self._spans[name]
        self._file.seek(span.start)
        reader = MemberReader(self._file, name, span.stop - span.start, take(self._members[name], "sha256", str))
        yield reader
        reader.finish()

    def _manifest_text(self) -> bytes:
        if MANIFEST not in self._spans:
            raise PlanFormatError(f"member {MANIFEST}: missing")
        span = self._spans[MANIFEST]
        self._file.seek(span.start)
        return self._file.read(span.stop - span.start)

    def _compare_members(self) -> None:
        if self._members.keys() != self._spans.keys() - {MANIFEST}:
            raise PlanFormatError(f"members: the manifest names {sorted(self._members)[:20]}, the file holds {sorted(self._spans)[:20]}")
        for name, record in self._members.items():
            span = self._spans[name]
            if take(record, "size", int) != span.stop - span.start:
                raise PlanFormatError(f"member {name}: expected {record['size']} bytes, got {span.stop - span.start}")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[ArchiveReader]:
    """The container at ``path``.

    Raises:
        PlanFormatError: There is no such file, it cannot be read, or it is not a container.
    """
    try:
        # Looked at first: opening a pipe would wait for a writer.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise PlanFormatError("expected a file, got something else", fix=_A_FILE)
        with open(path, "rb") as file:
            yield ArchiveReader(file)
    except OSError as error:
        raise PlanFormatError(f"cannot be read: {error}", fix=_A_FILE) from error


def _check_structure(file: IO[bytes]) -> Mapping[str, _Span]:
    """The members of a zip file whose bytes outside them match the digest in its comment."""
    end = file.seek(0, os.SEEK_END) - COMMENT_BYTES
    if end <= 0:
        raise PlanFormatError("expected a .kiln file, got one that is too short: it is truncated or of another kind")
    file.seek(end)
    expected = read_comment(file.read())
    spans = _spans_of(file)
    members: list[tuple[int, int]] = sorted((span.start, span.stop) for name, span in spans.items() if name != MANIFEST)
    if digest_outside(file, members, end) != expected:
        raise PlanFormatError("the file's structure does not match its checksum: it is truncated or altered")
    return spans


def _spans_of(file: IO[bytes]) -> Mapping[str, _Span]:
    try:
        with zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
    except Exception as error:
        # zipfile promises no set of errors for damaged files: struct, value, unicode, overflow and memory errors all come out of it.
        raise PlanFormatError(f"expected a zip file: {type(error).__name__}: {error}") from error
    spans: dict[str, _Span] = {}
    for info in infos:
        if info.filename in spans:
            raise PlanFormatError(f"member {info.filename[:100]}: stands twice")
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size or info.flag_bits & 1:
            raise PlanFormatError(f"member {info.filename[:100]}: expected it stored, got it compressed or encrypted")
        file.seek(info.header_offset)
        header = file.read(_LOCAL_HEADER.size)
        if len(header) != _LOCAL_HEADER.size:
            raise PlanFormatError(f"member {info.filename[:100]}: the file ends early")
        magic, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
        if magic != b"PK\x03\x04":
            raise PlanFormatError(f"member {info.filename[:100]}: no header where one was expected")
        start = info.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes
        spans[info.filename] = _Span(start, start + info.file_size)
    return spans
