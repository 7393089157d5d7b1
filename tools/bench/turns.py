"""Processes that prepare beside each other and measure one after another, with nothing else running."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_READY = "ready"


@dataclass(frozen=True, slots=True)
class Done:
    """What a process printed when it was its turn; ``stderr`` is all that it said there."""

    returncode: int
    stdout: str
    stderr: str


def wait_for_turn() -> None:
    """Called by a process once it has prepared: it goes on when all others have too and those before it are done."""
    print(_READY, flush=True)
    sys.stdin.readline()


def in_turn(commands: Sequence[Sequence[str]]) -> Iterator[Done]:
    """Starts all commands at once, and lets each go on behind its ``wait_for_turn`` when the one before has ended."""
    with contextlib.ExitStack() as stack:
        said = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in commands]
        running = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
            for command, errors in zip(commands, said, strict=True)
        ]
        for process in running:
            if process.stdout is not None:
                # Ends at once where a process fails before its turn.
                next((line for line in process.stdout if line.strip() == _READY), None)
        for process, errors in zip(running, said, strict=True):
            stdout, _ = process.communicate("go\n")
            errors.seek(0)
            yield Done(process.returncode, stdout, errors.read())
