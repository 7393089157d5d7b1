"""The command is there without a script on the PATH: ``python -m torchkiln``."""

from __future__ import annotations

import subprocess
import sys

from torchkiln.doctor import diagnose


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "torchkiln", *arguments], capture_output=True, text=True, check=False)


def test_the_module_runs_commands() -> None:
    done = run("doctor")
    assert (done.returncode, done.stdout.splitlines()) == (0, diagnose())


def test_an_unknown_command_is_a_usage_error() -> None:
    done = run("doktor")
    assert done.returncode == 2
    assert done.stderr.startswith("usage: torchkiln ")
