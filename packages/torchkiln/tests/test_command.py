"""The command is there without a script on the PATH: ``python -m torchkiln``."""

from __future__ import annotations

import subprocess
import sys

import pytest

from torchkiln.cli import main
from torchkiln.doctor import diagnose


def test_the_module_runs_commands() -> None:
    done = subprocess.run([sys.executable, "-m", "torchkiln", "doctor"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()) == (0, diagnose()), done.stderr


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["doktor"])
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("usage: torchkiln ")
