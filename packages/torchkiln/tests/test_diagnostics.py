"""What a compilation tells of itself: logs by area, and one folder for a bug report when it fails."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import torchkiln
from torchkiln.logs import AREAS, configure_logs
from torchkiln_converters import NetworkConverter
from torchkiln_core import ConversionError


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger("torchkiln")
    before = root.handlers[:], root.propagate
    yield
    root.handlers[:], root.propagate = before
    for area in AREAS:
        logging.getLogger(f"torchkiln.{area}").setLevel(logging.NOTSET)


X = torch.randn(2, 3)


def compile_small(**options: Any) -> torchkiln.CompiledModule:
    return torchkiln.compile(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU()), (X,), engine="reference", **options)


def test_logs_are_quiet_by_default(caplog: pytest.LogCaptureFixture) -> None:
    compile_small()
    assert [record for record in caplog.records if record.name.startswith("torchkiln.")] == []


def test_areas_open_by_name(caplog: pytest.LogCaptureFixture) -> None:
    configure_logs("lowering, +build")
    logging.getLogger("torchkiln").propagate = True
    compile_small()
    found = {(record.name, record.levelname) for record in caplog.records if record.name.startswith("torchkiln")}
    assert ("torchkiln.lowering", "INFO") in found
    assert ("torchkiln.lowering", "DEBUG") not in found
    assert ("torchkiln.build", "DEBUG") in found
    assert not any(name == "torchkiln.partition" for name, _ in found)


def test_all_stands_for_every_area() -> None:
    configure_logs("all,-runtime")
    levels = {area: logging.getLogger(f"torchkiln.{area}").level for area in AREAS}
    assert levels == {"lowering": logging.INFO, "partition": logging.INFO, "build": logging.INFO, "runtime": logging.ERROR}


def test_an_unknown_area_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ValueError, match="TORCHKILN_LOGS: unknown area 'lowerin': did you mean 'lowering'"):
        configure_logs("lowerin")


def test_the_variable_opens_logs_of_a_process() -> None:
    script = "import torch, torchkiln; torchkiln.compile(torch.nn.ReLU(), (torch.ones(3),), engine='reference', min_block_size=1)"
    done = subprocess.run(
        [sys.executable, "-c", script], env={"TORCHKILN_LOGS": "partition", "PATH": ""}, capture_output=True, text=True, check=True
    )
    assert "INFO torchkiln.partition: 1 engine segment(s) on reference" in done.stderr


def test_an_unknown_area_in_the_variable_is_a_warning_and_the_others_open() -> None:
    script = "import torchkiln, logging; print(logging.getLogger('torchkiln.build').level)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TORCHKILN_LOGS": "lowerin,build"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(logging.INFO)]
    assert "TORCHKILN_LOGS: unknown area 'lowerin': did you mean 'lowering'? known areas: lowering, partition, build, runtime, all" in (
        done.stderr
    )
    assert "Traceback" not in done.stderr


def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(*_: Any) -> None:
        raise ConversionError("no such layer")

    monkeypatch.setattr(NetworkConverter, "convert", convert)


def test_a_failed_compilation_leaves_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch)
    with pytest.raises(torchkiln.ConversionError) as caught:
        compile_small(debug_dir=str(tmp_path), require_full_compilation=True)
    [folder] = tmp_path.iterdir()
    assert any(str(folder) in note for note in caught.value.__notes__)
    assert {file.name for file in folder.iterdir()} == {
        "about.txt",
        "captured.txt",
        "engine_0.network.txt",
        "engine_0.txt",
        "error.txt",
        "lowered.txt",
    }
    assert "no such layer" in (folder / "error.txt").read_text()
    assert "aten.linear" in (folder / "captured.txt").read_text()
    assert "cannot be shown: ConversionError" in (folder / "engine_0.network.txt").read_text()
    about = (folder / "about.txt").read_text()
    assert f"torch: {torch.__version__}" in about
    assert "require_full_compilation: True" in about


def test_a_fallback_leaves_a_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch)
    with pytest.warns(torchkiln.FallbackWarning, match="no such layer"):
        compiled = compile_small(debug_dir=str(tmp_path))
    assert [segment.kind for segment in compiled.report.segments] == ["torch"]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_cannot_be_written_hides_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.warns(torchkiln.FallbackWarning, match="no such layer"):
        compile_small(debug_dir=str(file))
    with pytest.raises(torchkiln.ConversionError, match="no such layer") as caught:
        compile_small(debug_dir=str(file), require_full_compilation=True)
    assert any("cannot be written" in note for note in caught.value.__notes__)


def test_torch_compile_leaves_a_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch)
    torch.compiler.reset()
    options = {"engine": "reference", "min_block_size": 1, "debug_dir": str(tmp_path), "deterministic": True}
    compiled = torch.compile(torch.nn.ReLU(), backend="torchkiln", options=options)
    with pytest.warns(torchkiln.FallbackWarning, match="no such layer"):
        assert torch.equal(compiled(X), torch.relu(X))
    [folder] = tmp_path.iterdir()
    assert "aten.relu" in (folder / "captured.txt").read_text()
    assert "deterministic: True" in (folder / "about.txt").read_text()


def test_a_failed_export_leaves_a_folder(tmp_path: Path) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x

    with pytest.raises(torchkiln.ExportError):
        torchkiln.compile(broken, (X,), debug_dir=str(tmp_path))
    [folder] = tmp_path.iterdir()
    assert folder.name == "export-0"
    assert "ExportError" in (folder / "error.txt").read_text()


def test_nothing_is_written_when_all_goes_well(tmp_path: Path) -> None:
    compile_small(debug_dir=str(tmp_path / "absent"))
    assert list(tmp_path.iterdir()) == []
