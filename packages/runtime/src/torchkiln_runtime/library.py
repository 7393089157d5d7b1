"""The one module that imports TensorRT: which library is here, its dtypes, and its messages.

TensorRT-RTX (``tensorrt_rtx``) and TensorRT (``tensorrt``) share one Python API; everything else takes a ``Library`` and never asks which.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from torchkiln_core import BuildError

NAMES = ("tensorrt_rtx", "tensorrt")
"""The libraries that can be used, in order of preference."""

_DTYPES: Mapping[torch.dtype, str] = {
    torch.float32: "FLOAT",
    torch.float16: "HALF",
    torch.bfloat16: "BF16",
    torch.int64: "INT64",
    torch.int32: "INT32",
    torch.int8: "INT8",
    torch.uint8: "UINT8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "FP8",
}
_LEVELS: Mapping[str, int] = {
    "INTERNAL_ERROR": logging.ERROR,
    "ERROR": logging.ERROR,
    "WARNING": logging.WARNING,
    "INFO": logging.DEBUG,
    "VERBOSE": logging.DEBUG,
}


class Messages:
    """What TensorRT says: passed on to ``logging``, and kept for the errors of whoever is collecting.

    TensorRT takes one logger per process. A message belongs to the collection of its thread; one from a thread of TensorRT's own
    belongs to every collection that is open. ``recent`` has the last errors, for work that is too frequent to open one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, list[Collection]] = {}
        self.recent: deque[str] = deque(maxlen=10)

    def add(self, severity: str, text: str) -> None:
        """Takes a message from TensorRT."""
        level = _LEVELS.get(severity, logging.DEBUG)
        if level >= logging.ERROR:
            self.recent.append(text)
        with self._lock:
            own = self._open.get(threading.get_ident())
            collections = [own[-1]] if own else [stack[-1] for stack in self._open.values()]
        for collection in collections:
            if level >= logging.ERROR:
                collection.errors.append(text)
        # An error becomes an exception that carries it, so the log has it for the record only.
        name = collections[0].logger if collections else "torchkiln.runtime"
        logging.getLogger(name).log(min(level, logging.WARNING) if not collections else min(level, logging.INFO), "TensorRT: %s", text)

    @contextlib.contextmanager
    def collect(self, logger: str) -> Iterator[Collection]:
        """Keeps the errors that TensorRT logs meanwhile and names the ``logging`` logger that they go to."""
        collection = Collection(logger)
        ident = threading.get_ident()
        with self._lock:
            self._open.setdefault(ident, []).append(collection)
        try:
            yield collection
        finally:
            with self._lock:
                self._open[ident].remove(collection)
                if not self._open[ident]:
                    del self._open[ident]


@dataclass(eq=False, slots=True)
class Collection:
    """Errors that TensorRT logged during one piece of work."""

    logger: str
    errors: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The errors, one a line, without those that only say that this machine has no GPU."""
        told = dict.fromkeys(error.strip() for error in self.errors)
        reasons = [error for error in told if "cudaError 35" not in error] or list(told)
        return "\n".join(f"    {reason}" for reason in reasons) or "    (TensorRT logged nothing)"


@dataclass(frozen=True, eq=False, slots=True)
class Library:
    """TensorRT as it is installed here.

    Attributes:
        name: ``tensorrt_rtx`` or ``tensorrt``.
        version: Such as ``1.6.1.120``.
        module: The imported module.
        messages: What it says.
        logger: The ``ILogger`` of this process.
    """

    name: str
    version: str
    module: Any = field(repr=False)
    messages: Messages = field(repr=False)
    logger: Any = field(repr=False)

    def dtype(self, dtype: torch.dtype) -> Any | None:
        """TensorRT's dtype, or ``None`` when it has none such."""
        name = _DTYPES.get(dtype)
        return None if name is None else getattr(self.module.DataType, name, None)

    def torch_dtype(self, dtype: Any) -> torch.dtype:
        """The dtype that TensorRT calls ``dtype``."""
        return next(ours for ours in _DTYPES if self.dtype(ours) == dtype)

    def weights(self, tensor: torch.Tensor) -> Any:
        """A view ``trt.Weights`` of a contiguous host tensor, which must stay alive until the build ends."""
        return self.module.Weights(self.dtype(tensor.dtype), tensor.data_ptr(), tensor.numel())

    def named_targets(self) -> dict[str, Any]:
        """Compute capabilities that a plan can be built for on any machine: ``{"sm_89": trt.ComputeCapability.SM89, ...}``."""
        capabilities = getattr(self.module, "ComputeCapability", None)
        if capabilities is None:
            return {}
        return {f"sm_{name[2:]}": value for name, value in capabilities.__members__.items() if name.startswith("SM")}


def find_library(preferred: str | None = None) -> Library | None:
    """The TensorRT library installed here, or ``None``; ``preferred`` allows only that one.

    Raises:
        BuildError: ``preferred`` is not a library's name.
    """
    if preferred is not None and preferred not in NAMES:
        raise BuildError(f"engine library: expected one of {', '.join(NAMES)}, got {preferred!r}")
    for name in NAMES if preferred is None else (preferred,):
        library = _load(name)
        if library is not None:
            return library
    return None


def require_library(preferred: str | None = None) -> Library:
    """As ``find_library``, but an absent library is an error.

    Raises:
        BuildError: No library is installed.
    """
    library = find_library(preferred)
    if library is None:
        wanted = preferred or "TensorRT-RTX or TensorRT"
        raise BuildError(
            f"no engine library: {wanted} is not installed",
            fix='install torchkiln with the extra "rtx" or "tensorrt", or use engine="reference"',
        )
    return library


@functools.cache
def _load(name: str) -> Library | None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and not error.name.startswith("tensorrt"):
            raise
        return None
    if not hasattr(module, "Builder"):
        return None
    messages = Messages()
    return Library(name, str(module.__version__), module, messages, _make_logger(module, messages))


def _make_logger(trt: Any, messages: Messages) -> Any:
    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            messages.add(str(severity).rsplit(".", 1)[-1], msg)

    return Logger()
