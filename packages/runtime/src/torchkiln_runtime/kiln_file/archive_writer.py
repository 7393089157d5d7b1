"""Writes the container: members as streams, the manifest, then the digest of everything between the members."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import secrets
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch

from torchkiln_core import PlanError
from torchkiln_runtime.kiln_file.archive import COMMENT_BYTES, FORMAT, MANIFEST, VERSION, comment_of, digest_outside
from torchkiln_runtime.kiln_file.fields import dump_json
from torchkiln_runtime.kiln_file.tensor_bytes import CHUNK_BYTES, memory_of


@contextlib.contextmanager
def replaced_file(path: Path) -> Iterator[IO[bytes]]:
    """A new file that takes the place of ``path`` when the block ends well, and is removed when it does not.

    Raises:
        PlanError: The file cannot be written.
    """
    temporary = path.parent / f".{secrets.token_hex(8)}.kiln.tmp"
    with contextlib.ExitStack() as cleanup:
        try:
            file = cleanup.enter_context(open(temporary, "x+b"))
            cleanup.callback(temporary.unlink, missing_ok=True)
            yield file
            file.flush()
            os.fsync(file.fileno())
            file.close()
            os.replace(temporary, path)
        except OSError as error:
            raise PlanError(f"{path}: cannot be written: {error}", fix="name a file in a folder that is there") from error


class MemberWriter:
    """One open member: counts and hashes what goes through it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()
        self._size = 0

    def write(self, data: bytes | memoryview) -> None:
        """Appends bytes."""
        view = memoryview(data)
        for start in range(0, len(view), CHUNK_BYTES):
            chunk = view[start : start + CHUNK_BYTES]
            self._digest.update(chunk)
            self._stream.write(chunk)
        self._size += len(view)

    def write_tensor(self, content: torch.Tensor) -> None:
        """Appends the bytes of a uint8 tensor ``[size]``, which may be on a GPU."""
        on_host = content.cpu().contiguous()
        self.write(memory_of(on_host))

    def record(self) -> dict[str, Any]:
        """What the manifest says of the member."""
        return {"size": self._size, "sha256": self._digest.hexdigest()}


class ArchiveWriter:
    """A ``.kiln`` container on an open, empty file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._zip = zipfile.ZipFile(file, "w", zipfile.ZIP_STORED)
        self._members: dict[str, dict[str, Any]] = {}
        self._spans: list[tuple[int, int]] = []

    @contextlib.contextmanager
    def member(self, name: str) -> Iterator[MemberWriter]:
        """A new member, complete when the block ends."""
        with self._open(name) as stream:
            start = self._file.tell()
            member = MemberWriter(stream)
            yield member
        self._members[name] = member.record()
        self._spans.append((start, start + self._members[name]["size"]))

    def finish(self) -> None:
        """Writes the manifest and the digest."""
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "torchkiln": importlib.metadata.version("torchkiln-runtime"),
            "torch": torch.__version__,
            "members": self._members,
        }
        with self._open(MANIFEST) as stream:
            stream.write(dump_json(manifest))
        self._zip.comment = b" " * COMMENT_BYTES
        self._zip.close()
        end = self._file.seek(0, os.SEEK_END) - COMMENT_BYTES
        digest = digest_outside(self._file, self._spans, end)
        self._file.seek(end)
        self._file.write(comment_of(digest))

    def _open(self, name: str) -> IO[bytes]:
        # A fixed date makes equal programs equal files.
        return self._zip.open(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), "w", force_zip64=True)
