"""A serialized engine in an unnamed temporary file, mapped into memory.

A plan is as large as the weights and is read once, when its engine is loaded. In a file the system can take its memory back meanwhile.
"""

from __future__ import annotations

import mmap
import tempfile
from typing import Any

import torch

from torchkiln_core import BuildError


class PlanFile:
    """Takes the bytes of one plan in pieces.

    Raises:
        BuildError: The directory for temporary files cannot be written.
    """

    def __init__(self) -> None:
        self._error: OSError | None = None
        try:
            self._file = tempfile.TemporaryFile(prefix="torchkiln-", suffix=".plan")  # noqa: SIM115 - the mapping outlives this object
        except OSError as error:
            raise _unwritable(error) from error

    def write(self, data: bytes) -> int:
        """Appends; returns the number of bytes taken, 0 after an error, which ``read`` raises: TensorRT's thread cannot."""
        try:
            self._file.write(data)
        except OSError as error:
            self._error = error
            return 0
        return len(data)

    def read(self) -> torch.Tensor:
        """All that was written, uint8 ``[size]``; changes to the tensor stay in memory.

        Raises:
            BuildError: Not all could be written.
        """
        try:
            if self._error is not None:
                raise self._error
            self._file.flush()
            if self._file.tell() == 0:
                return torch.empty(0, dtype=torch.uint8)
            mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise _unwritable(error) from error
        finally:
            self._file.close()
        return torch.frombuffer(mapped, dtype=torch.uint8)


def stream_writer(interface: Any, file: PlanFile) -> Any:
    """An ``IStreamWriter`` that appends to ``file``."""

    class Writer(interface):  # type: ignore[misc]
        def __init__(self) -> None:
            interface.__init__(self)  # the bindings do not follow super()

        def write(self, data: bytes) -> int:
            return file.write(data)

    return Writer()


def _unwritable(error: OSError) -> BuildError:
    return BuildError(
        f"plan: cannot be written to {tempfile.gettempdir()}: {error}",
        fix="free space there, or name another directory by the environment variable TMPDIR",
    )
