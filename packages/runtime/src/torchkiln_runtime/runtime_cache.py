"""Keeps the kernels that TensorRT-RTX compiles at first use between processes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from torchkiln_runtime.files import write_atomically

_log = logging.getLogger("torchkiln.runtime")


class RuntimeCacheFile:
    """The file of one plan's compiled kernels. TensorRT-RTX itself refuses one of another version, GPU or driver.

    Args:
        directory: Where the files are.
        key: Key of the plan.
    """

    def __init__(self, directory: Path, key: str) -> None:
        self._path = directory / f"{key}.kernels"
        self._stored_size = -1

    def read_into(self, cache: Any) -> None:
        """Fills an ``IRuntimeCache``; a file that TensorRT refuses is ignored and will be replaced."""
        try:
            blob = self._path.read_bytes()
        except OSError:
            return
        if cache.deserialize(blob):
            self._stored_size = len(blob)
        else:
            _log.info("compiled kernels in %s are for another machine or version; compiling them again", self._path)

    def write_from(self, cache: Any) -> None:
        """Stores an ``IRuntimeCache`` if it has grown; a failure costs time only, so it is logged."""
        blob = cache.serialize()
        if blob is None or blob.nbytes <= self._stored_size:
            return
        try:
            write_atomically(self._path, [memoryview(blob)])
            self._stored_size = blob.nbytes
        except OSError as error:
            _log.warning("compiled kernels cannot be kept in %s: %s", self._path, error)
