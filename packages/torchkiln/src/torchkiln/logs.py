"""Logging: one tree of standard loggers under ``torchkiln``, quiet by default, opened by ``TORCHKILN_LOGS``."""

from __future__ import annotations

import difflib
import functools
import logging
import os

AREAS = ("lowering", "partition", "build", "runtime")
"""Loggers ``torchkiln.<area>``."""
VARIABLE = "TORCHKILN_LOGS"

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def open_logs() -> None:
    """Does what ``TORCHKILN_LOGS`` says when torchkiln is imported; an unknown area is a warning, since no program should end for it."""
    for part in os.environ.get(VARIABLE, "").split(","):
        try:
            configure_logs(part)
        except ValueError as error:
            warn_once(str(error))


def configure_logs(text: str | None = None) -> None:
    """Sets levels as ``TORCH_LOGS`` does: ``lowering,+build,-runtime``; ``all`` stands for every area.

    A name alone shows what a stage did (``INFO``), with ``+`` also graphs, networks and all that TensorRT says (``DEBUG``), with ``-``
    errors only. Where no handler is installed for ``torchkiln``, one that writes to stderr is.

    Args:
        text: The setting; by default the environment variable ``TORCHKILN_LOGS``.

    Raises:
        ValueError: An unknown area.
    """
    setting = os.environ.get(VARIABLE, "") if text is None else text
    wanted = [part.strip() for part in setting.split(",") if part.strip()]
    for part in wanted:
        level = {"+": logging.DEBUG, "-": logging.ERROR}.get(part[0], logging.INFO)
        area = part.lstrip("+-")
        if area not in (*AREAS, "all"):
            close = difflib.get_close_matches(area, AREAS, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise ValueError(f"{VARIABLE}: unknown area {area!r}: {hint}known areas: {', '.join(AREAS)}, all")
        for name in AREAS if area == "all" else (area,):
            logging.getLogger(f"torchkiln.{name}").setLevel(level)
    root = logging.getLogger("torchkiln")
    if wanted and not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(_FORMAT))
        root.addHandler(handler)
        root.propagate = False


@functools.cache
def warn_once(message: str) -> None:
    """A warning of ``torchkiln`` itself, once in a process."""
    logging.getLogger("torchkiln").warning("%s", message)
