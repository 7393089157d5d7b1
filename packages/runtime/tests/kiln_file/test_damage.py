"""Files that are not what was written. Each is refused by ``PlanFormatError``, and by nothing else."""

from __future__ import annotations

import io
import os
import zipfile

import pytest
import torch

from torchkiln_core import PlanFormatError
from torchkiln_runtime.kiln_file import load_program


def refused(path, data: bytes | None = None) -> PlanFormatError:
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(PlanFormatError) as caught:
        load_program(path)
    assert str(path) in caught.value.message
    return caught.value


def header_bytes(data: bytes) -> list[int]:
    """Offsets of bytes that belong to the zip format: local headers, the directory and the end record."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        local = [
            offset for info in archive.infolist() for offset in range(info.header_offset, info.header_offset + 30 + len(info.filename) + 20)
        ]
        return local + list(range(archive.start_dir, len(data)))


def test_truncated_anywhere(saved, tmp_path):
    data = saved.read_bytes()
    cuts = {*range(0, len(data), 97), *range(len(data) - 60, len(data)), 1, 4, 30}
    for cut in cuts:
        refused(tmp_path / "cut.kiln", data[:cut])


def test_one_bit_flipped_anywhere(saved, tmp_path):
    data = bytearray(saved.read_bytes())
    for offset in range(0, len(data), 41):
        data[offset] ^= 1 << offset % 8
        refused(tmp_path / "flipped.kiln", data)
        data[offset] ^= 1 << offset % 8
    assert data == saved.read_bytes()


def test_one_byte_changed_in_the_zip_headers(saved, tmp_path):
    data = bytearray(saved.read_bytes())
    for offset in header_bytes(data):
        data[offset] ^= 0xFF
        refused(tmp_path / "flipped.kiln", data)
        data[offset] ^= 0xFF


def test_bytes_cut_out_or_put_in_anywhere(saved, tmp_path):
    data = saved.read_bytes()
    for offset in range(0, len(data), 211):
        refused(tmp_path / "cut.kiln", data[:offset] + data[offset + 1 :])
        refused(tmp_path / "grown.kiln", data[:offset] + b"\0" + data[offset:])
    refused(tmp_path / "grown.kiln", data + b"\0")
    refused(tmp_path / "grown.kiln", data + data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"PK\x05\x06" + b"\0" * 18,
        b"PK\x05\x06" + b"\xff" * 18,
        b"{}",
        b"\xff\xfe" * 5000,
        os.urandom(4096),
        b"PK\x03\x04" * 1000,
    ],
    ids=["empty", "zero", "empty-zip", "odd-zip", "json", "not-utf8", "random", "headers"],
)
def test_other_bytes(data, tmp_path):
    refused(tmp_path / "other.kiln", data)


def test_a_foreign_zip(tmp_path):
    with zipfile.ZipFile(tmp_path / "foreign.kiln", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", "{}")
        archive.writestr("program.json", "x" * 100_000)
    refused(tmp_path / "foreign.kiln")


def test_a_torch_file(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "torch.kiln")
    refused(tmp_path / "torch.kiln")


def test_a_file_packed_again(saved, tmp_path):
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(tmp_path / "packed.kiln", "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
        new.comment = old.comment
    refused(tmp_path / "packed.kiln")


def test_a_directory_a_missing_file_and_a_pipe(tmp_path):
    refused(tmp_path)
    refused(tmp_path / "missing.kiln")
    refused(tmp_path / "missing" / "\udcff.kiln")
    os.mkfifo(tmp_path / "pipe.kiln")
    refused(tmp_path / "pipe.kiln")


def test_a_newer_format_says_what_to_do(saved, tmp_path):
    data = saved.read_bytes()
    assert b"torchkiln.kiln v0001" in data
    error = refused(tmp_path / "new.kiln", data.replace(b"torchkiln.kiln v0001", b"torchkiln.kiln v0002"))
    assert "version 2" in error.message
    assert error.fix == "upgrade torchkiln"
