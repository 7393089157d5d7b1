"""What runs in PyTorch, under torch's own switches for reproducible results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


class _Switches:
    """torch's switches, which are the process's: held while anything of ours needs them, then given back as they were."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._before = (False, False, False)

    def hold(self) -> None:
        """Turns on deterministic algorithms, and off cuDNN's choice by measuring, until ``release``."""
        with self._lock:
            if self._holders == 0:
                self._before = (
                    torch.are_deterministic_algorithms_enabled(),
                    torch.is_deterministic_algorithms_warn_only_enabled(),
                    torch.backends.cudnn.benchmark,
                )
                enabled, _, measures = self._before
                if not enabled:
                    torch.use_deterministic_algorithms(True)
                if measures:
                    torch.backends.cudnn.benchmark = False
            self._holders += 1

    def release(self) -> None:
        """Gives the user's settings back when the last holder leaves."""
        with self._lock:
            self._holders -= 1
            if self._holders == 0:
                enabled, warn_only, measures = self._before
                if not enabled:
                    torch.use_deterministic_algorithms(False, warn_only=warn_only)
                if measures:
                    torch.backends.cudnn.benchmark = True


_switches = _Switches()


@contextmanager
def deterministic_torch() -> Iterator[None]:
    """``torch.use_deterministic_algorithms(True)`` without cuDNN's measuring, for the block.

    A user who has turned it on already keeps their ``warn_only``. The switches are the process's, so other threads see them meanwhile.
    """
    _switches.hold()
    try:
        yield
    finally:
        _switches.release()


def deterministically(function: Callable[P, R]) -> Callable[P, R]:
    """The function, every call of which runs under ``deterministic_torch``."""

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        # As `deterministic_torch`, without a context object for every call.
        _switches.hold()
        try:
            return function(*args, **kwargs)
        finally:
            _switches.release()

    return run
