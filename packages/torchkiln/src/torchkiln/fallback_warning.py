"""``FallbackWarning``, at the line of the user's program that compiles or calls."""

from __future__ import annotations

import sys
import traceback
import warnings
from pathlib import Path

import torch

_NOT_THE_USERS = (str(Path(__file__).parent), str(Path(torch.__file__).parent), "<eval_with_key>")
"""Where files of torchkiln, of torch and of generated graphs are."""


class FallbackWarning(UserWarning):
    """A segment could not be compiled; it, or the call of it that the message names, runs in PyTorch, and the result is still right."""


def warn_of_fallback(message: str) -> None:
    """A ``FallbackWarning``."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_stack(sys._getframe(1))]
    inside = next((count for count, file in enumerate(files) if not file.startswith(_NOT_THE_USERS)), 0)
    warnings.warn(message, FallbackWarning, stacklevel=inside + 2)
