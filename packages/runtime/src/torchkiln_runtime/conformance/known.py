"""Differences between TensorRT and the semantics of our layers that are known and stated in the docstrings of the layers."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

KNOWN: Mapping[str, str] = {}
"""What differs, by a pattern of row names (``Activation/RELU edges/*``). A pattern that matches no difference any more is an error."""


def known_difference(name: str) -> str | None:
    """The statement about the row ``name``, if there is one."""
    return next((text for pattern, text in KNOWN.items() if fnmatch.fnmatchcase(name, pattern)), None)
