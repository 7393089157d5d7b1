"""Whether TensorRT-RTX computes fp32 products in TF32, which is a property of the process.

TensorRT-RTX 1.6 has a builder flag for TF32 but ignores it: products and convolutions of fp32 use TF32 unless the environment variable
``NVIDIA_TF32_OVERRIDE`` is 0. The library reads the variable at the first build and at the first execution context of the process,
keeps both values, and refuses a plan that was built under another value than contexts are made under. So the first build or context
decides for the process. TensorRT for data-centre GPUs follows its flag, and nothing here concerns it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator

from torchkiln_core import KilnError
from torchkiln_runtime.library import Library

_VARIABLE = "NVIDIA_TF32_OVERRIDE"
_OFF = "0"
_SAME = "use one allow_tf32 for all programs of a process, or run this one in another process"

_log = logging.getLogger("torchkiln.build")


class _Process:
    """What the library of this process has read, and the variable as the user left it while we hold another value in it.

    torch's libraries read the same variable at their own first use, so it is ours during builds and the making of contexts only.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.uses_tf32: bool | None = None
        self.warned = False
        self._holders = 0
        self._before: str | None = None

    @property
    def users(self) -> str | None:
        """The user's value of the variable."""
        return self._before if self._holders else os.environ.get(_VARIABLE)

    def hold(self, *, allow_tf32: bool) -> None:
        """Sets the variable until ``release``; all holders at one time want the same."""
        if self._holders == 0:
            self._before = os.environ.get(_VARIABLE)
            _set(None if allow_tf32 else _OFF)
        self._holders += 1

    def release(self) -> None:
        """Gives the user's value back when the last holder leaves."""
        self._holders -= 1
        if self._holders == 0:
            _set(self._before)


_process = _Process()


def effective_tf32(library: Library, allow_tf32: bool) -> bool:
    """What ``allow_tf32`` comes to here: nothing is allowed where the user's environment turns TF32 off."""
    if not allow_tf32 or not _is_per_process(library):
        return allow_tf32
    with _process.lock:
        if _process.users != _OFF:
            return True
        if not _process.warned:
            _process.warned = True
            _log.warning("allow_tf32=True has no effect: the environment variable %s=%s turns TF32 off", _VARIABLE, _OFF)
    return False


def tf32_of_process(library: Library, otherwise: bool) -> bool:
    """What the process uses already; ``otherwise`` where nothing has decided yet."""
    with _process.lock:
        decided = _process.uses_tf32
    return otherwise if decided is None or not _is_per_process(library) else decided


def check_tf32(library: Library, allow_tf32: bool, error: Callable[..., KilnError]) -> None:
    """Raises ``error`` if this process cannot compute with the effective ``allow_tf32``."""
    if _is_per_process(library):
        with _process.lock:
            _check(library, allow_tf32, error)


@contextlib.contextmanager
def tf32_scope(library: Library, allow_tf32: bool, error: Callable[..., KilnError]) -> Iterator[None]:
    """Lets the library read the effective ``allow_tf32`` meanwhile, and so decides for the process if nothing has yet.

    Raises:
        KilnError: ``error``, when this process uses the other precision already, or the user's environment asks for it.
    """
    if not _is_per_process(library):
        yield
        return
    with _process.lock:
        _check(library, allow_tf32, error)
        _process.uses_tf32 = allow_tf32
        _process.hold(allow_tf32=allow_tf32)
    try:
        yield
    finally:
        with _process.lock:
            _process.release()


def _is_per_process(library: Library) -> bool:
    return library.name == "tensorrt_rtx"


def _check(library: Library, allow_tf32: bool, error: Callable[..., KilnError]) -> None:
    if _process.uses_tf32 not in (None, allow_tf32):
        now, wanted = ("off", "on") if allow_tf32 else ("on", "off")
        raise error(
            f"{library.name} {library.version}: expected to compute with TF32 {wanted}, but this process already uses it with TF32 {now}",
            fix=_SAME,
        )
    users = _process.users
    if allow_tf32 and users == _OFF:
        raise error(
            f"plan with allow_tf32=True: the environment variable {_VARIABLE}={users} turns TF32 off",
            fix=f"unset {_VARIABLE} before the process starts, or compile with allow_tf32=False",
        )
    if not allow_tf32 and users not in (None, _OFF):
        raise error(
            f"allow_tf32=False: expected the environment variable {_VARIABLE} unset or {_OFF}, got {users!r}",
            fix=f"unset {_VARIABLE}, or compile with allow_tf32=True",
        )


def _set(value: str | None) -> None:
    if value is None:
        os.environ.pop(_VARIABLE, None)
    else:
        os.environ[_VARIABLE] = value
