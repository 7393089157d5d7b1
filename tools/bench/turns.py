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
    """Called by a process that has prepared: it goes on alone, until it waits again or ends."""
    print(_READY, flush=True)
    sys.stdin.readline()


def in_turn(commands: Sequence[Sequence[str]]) -> Iterator[Done]:
    """Starts all commands at once, and lets one at a time go on behind its ``wait_for_turn``, round after round until all have ended."""
    with contextlib.ExitStack() as stack:
        said = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in commands]
        running = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True))
            for command, errors in zip(commands, said, strict=True)
        ]
        printed = [_until_ready(process) for process in running]
        told = 0
        while told < len(running):
            for process, lines in zip(running, printed, strict=True):
                if process.poll() is None and process.stdin is not None:
                    process.stdin.write("go\n")
                    process.stdin.flush()
                    lines += _until_ready(process)
                while told < len(running) and running[told].poll() is not None:
                    said[told].seek(0)
                    yield Done(running[told].returncode, "".join(printed[told]), said[told].read())
                    told += 1


def _until_ready(process: subprocess.Popen[str]) -> list[str]:
    """What a process prints until it waits for its turn or ends."""
    lines: list[str] = []
    for line in process.stdout or ():
        if line.strip() == _READY:
            return lines
        lines.append(line)
    process.wait()
    return lines
