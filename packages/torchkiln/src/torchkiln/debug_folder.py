"""What a failed compilation leaves for a bug report: one folder of text, without weights."""

from __future__ import annotations

import dataclasses
import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torchkiln.doctor import diagnose
from torchkiln_core import KilnError, Options

_LOG = logging.getLogger("torchkiln.build")


class DebugFolder:
    """Keeps how to write what the stages made, and writes it only when one of them fails.

    Args:
        options: Its ``debug_dir`` says where; nothing is kept without.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._contents: dict[str, Callable[[], str]] = {}
        self._written: list[BaseException] = []

    def keep(self, name: str, content: Callable[[], str]) -> None:
        """What the file ``name`` will hold."""
        if self._options.diagnostics.debug_dir is not None:
            self._contents[name] = content

    @contextmanager
    def watch(self, stage: str) -> Iterator[None]:
        """Writes the folder when the block fails, once for each error."""
        try:
            yield
        except Exception as error:
            if self._options.diagnostics.debug_dir is not None and error not in self._written:
                self._written.append(error)
                try:
                    told = f"what was compiled is in {self._write(Path(self._options.diagnostics.debug_dir), stage, error)}"
                except OSError as problem:
                    told = f"debug_dir: what was compiled cannot be written there: {problem}"
                error.add_note(told)
                _LOG.warning("%s failed; %s", stage, told)
            raise

    def _write(self, parent: Path, stage: str, error: Exception) -> Path:
        folder = _new_folder(parent, stage)
        about = [*diagnose(), f"stage: {stage}", *(f"{name}: {value!r}" for name, value in _settings(self._options))]
        contents: dict[str, Callable[[], str]] = {
            **self._contents,
            "about.txt": lambda: "\n".join(about),
            "error.txt": lambda: "".join(traceback.format_exception(error)),
        }
        for name, content in contents.items():
            try:
                text = content()
            except (KilnError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as problem:
                # The report must not fail for the reason that the compilation did.
                text = f"cannot be shown: {type(problem).__name__}: {problem}"
            (folder / name).write_text(text + "\n", encoding="utf-8")
        return folder


def _new_folder(parent: Path, stage: str) -> Path:
    count = 0
    while True:
        folder = parent / f"{stage}-{count}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            count += 1
        else:
            return folder


def _settings(options: Options) -> Iterator[tuple[str, object]]:
    for stage in dataclasses.fields(options):
        group = getattr(options, stage.name)
        yield from ((item.name, getattr(group, item.name)) for item in dataclasses.fields(group))
