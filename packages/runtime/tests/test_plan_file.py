"""Plans in temporary files, and memory that is given back."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch

from torchkiln_core import BuildError, BuildOptions, Network
from torchkiln_runtime import TensorRTBuilder
from torchkiln_runtime.host_memory import page_out, return_freed
from torchkiln_runtime.plan_file import PlanFile


def test_pieces_come_back_in_order_and_can_be_changed_apart_from_the_file() -> None:
    file = PlanFile()
    assert [file.write(b"abc"), file.write(b""), file.write(b"de")] == [3, 0, 2]
    data = file.read()
    assert bytes(data.tolist()) == b"abcde"
    data[0] = 0
    assert data[0] == 0


def test_a_plan_of_nothing_is_empty() -> None:
    assert PlanFile().read().numel() == 0


def test_memory_that_is_given_back_keeps_its_contents() -> None:
    file = PlanFile()
    file.write(bytes(range(256)) * 64)
    for data in (file.read(), torch.arange(256, dtype=torch.uint8).repeat(64), torch.zeros(3, dtype=torch.uint8)):
        before = data.clone()
        page_out(data)
        return_freed()
        assert torch.equal(data, before)


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = tmp_path / "missing"
    monkeypatch.setattr(tempfile, "tempdir", str(missing))
    with pytest.raises(BuildError, match=r"plan: cannot be written to .*missing") as caught:
        PlanFile()
    assert "TMPDIR" in str(caught.value)


def test_a_full_disk_is_the_reason_of_a_failed_build(static_network: Network, ahead: BuildOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: open("/dev/full", "wb", buffering=0))  # noqa: SIM115
    with pytest.raises(BuildError, match="No space left"):
        TensorRTBuilder(ahead).build(static_network)
