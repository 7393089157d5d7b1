from __future__ import annotations

import io
import json
import zipfile

import pytest
import safetensors.torch
import torch

from torchkiln_core import PlanError
from torchkiln_runtime.kiln_file import load_program, save_program
from torchkiln_runtime.kiln_file.names import DTYPES
from torchkiln_runtime.kiln_file.safetensors_format import Block, header_of, read_header
from torchkiln_runtime.kiln_file.tensor_bytes import memory_of


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(memory_of(tensor.detach().resolve_conj().resolve_neg().contiguous()))


def member_of(path, name: str) -> bytes:
    with zipfile.ZipFile(path) as archive:
        return archive.read(name)


def blocks_in(path) -> int:
    return len(safetensors.torch.load(member_of(path, "tensors.safetensors")))


@pytest.mark.parametrize("name", sorted(DTYPES))
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3)], ids=str)
def test_every_dtype_comes_back_bit_by_bit(name, shape, program_of, through_file):
    dtype = DTYPES[name]
    count = torch.empty(shape, dtype=dtype).numel() * dtype.itemsize
    content = torch.arange(count, dtype=torch.uint8) % 2 if dtype is torch.bool else (torch.arange(count) * 37 % 256).to(torch.uint8)
    tensor = torch.empty(0, dtype=dtype).set_(content.untyped_storage(), 0, shape)
    loaded = through_file(program_of(weights={"w": tensor})).weights["w"]
    assert (loaded.dtype, loaded.shape, loaded.stride()) == (dtype, tensor.shape, tensor.stride())
    assert bits(loaded) == bits(tensor)


def test_strides_come_back(program_of, through_file):
    base = torch.arange(48.0)
    weights = {
        "transposed": base.reshape(6, 8).clone().t(),
        "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "expanded": torch.randn(3, 1).expand(3, 1000),
        "strided": base.clone()[1::3],
        "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
        "negative": torch.randn(3, dtype=torch.complex64).conj().imag,
    }
    loaded = through_file(program_of(weights=weights)).weights
    for name, tensor in weights.items():
        assert torch.equal(loaded[name], tensor), name
        # A negated view of every second number has no memory of its own: its values are written, densely.
        assert loaded[name].stride() == ((1,) if name == "negative" else tensor.stride()), name


def test_an_expanded_tensor_is_as_small_as_what_it_repeats(program_of, tmp_path):
    save_program(program_of(weights={"w": torch.ones(1).expand(1 << 24)}), tmp_path / "a.kiln")
    assert (tmp_path / "a.kiln").stat().st_size < 10_000


def test_shared_memory_is_saved_once_and_shared_again(program_of, tmp_path):
    buffer = torch.arange(100_000.0)
    weights = {
        "all": buffer,
        "same": buffer,
        "parameter": torch.nn.Parameter(buffer),
        "row": buffer[10:20],
        "bytes": buffer.view(torch.uint8),
    }
    save_program(program_of(weights=weights), tmp_path / "a.kiln")
    assert (tmp_path / "a.kiln").stat().st_size < 410_000
    loaded = load_program(tmp_path / "a.kiln").weights
    assert loaded["same"] is loaded["all"]
    loaded["all"][10] = -5.0
    assert loaded["row"][0] == -5.0
    assert loaded["bytes"].view(torch.float32)[10] == -5.0
    assert torch.equal(loaded["bytes"][:40], buffer.view(torch.uint8)[:40])


def test_parts_of_one_storage_that_do_not_overlap_are_apart(program_of, tmp_path):
    buffer = torch.arange(100_000.0)
    weights = {
        "tail": buffer[-7:],
        "head": buffer[:3],
        "odd": buffer.view(torch.uint8)[21:26],
        "even": buffer.view(torch.uint8)[22:30].view(torch.int16),
    }
    save_program(program_of(weights=weights), tmp_path / "a.kiln")
    assert (tmp_path / "a.kiln").stat().st_size < 10_000
    loaded = load_program(tmp_path / "a.kiln").weights
    for name, tensor in weights.items():
        assert torch.equal(loaded[name], tensor), name
    assert loaded["tail"].untyped_storage().nbytes() == 28


def test_an_engine_constant_that_is_a_weight_is_saved_once(saved):
    content = json.loads(member_of(saved, "program.json"))
    assert content["tensors"]["engine_0/constant_0"]["block"] == "weights:layer.weight"
    assert blocks_in(saved) == 3
    program = load_program(saved)
    assert program.segments[0].network.steps[1].layer.tensor is program.weights["layer.weight"]


def test_parameters_come_back_as_plain_tensors(saved):
    weight = load_program(saved).weights["layer.weight"]
    assert type(weight) is torch.Tensor
    assert not weight.requires_grad


def test_the_safetensors_library_reads_our_tensors(program_of, tmp_path):
    weights = {
        "a.b": torch.randn(3, 4).to(torch.bfloat16),
        "flag": torch.tensor(True),
        "empty": torch.empty(0, 2),
        "half": torch.ones(3).half(),
    }
    save_program(program_of(weights=weights), tmp_path / "a.kiln")
    found = safetensors.torch.load(member_of(tmp_path / "a.kiln", "tensors.safetensors"))
    assert found.keys() == {f"weights:{name}" for name in weights}
    for name, tensor in weights.items():
        assert torch.equal(found[f"weights:{name}"], tensor)
        assert found[f"weights:{name}"].dtype == tensor.dtype


def test_we_read_what_the_safetensors_library_writes():
    pytest.importorskip("numpy", reason="the safetensors library saves by way of NumPy")
    tensors = {"b": torch.arange(3), "a": torch.ones(2, 2).to(torch.float8_e4m3fn), "c": torch.empty(0), "d": torch.tensor(2.5)}
    data = safetensors.torch.save(tensors, {"some": "metadata"})
    stream = io.BytesIO(data)
    for name, size in read_header(stream.read, len(data)):
        assert stream.read(size) == bits(tensors.pop(name))
    assert tensors == {}


def test_larger_elements_come_first_so_that_all_are_aligned():
    blocks = [
        Block("a", torch.bool, (3,), torch.zeros(3, dtype=torch.uint8)),
        Block("b", torch.int64, (1,), torch.zeros(8, dtype=torch.uint8)),
    ]
    header, ordered = header_of(blocks)
    assert [block.name for block in ordered] == ["b", "a"]
    assert len(header) % 8 == 0


def _quantized():
    return torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)


class _Subclass(torch.Tensor):
    pass


def _fake():
    with torch._subclasses.FakeTensorMode():
        return torch.empty(2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2, 2).to_sparse(),
        _quantized,
        lambda: torch.empty(2, device="meta"),
        lambda: torch.ones(2).as_subclass(_Subclass),
        _fake,
    ],
    ids=["sparse", "quantized", "meta", "subclass", "fake"],
)
@pytest.mark.filterwarnings("ignore:.*[Qq]uantiz")
def test_other_tensors_are_refused(make, program_of, tmp_path):
    with pytest.raises(PlanError, match="weights:w"):
        save_program(program_of(weights={"w": make()}), tmp_path / "a.kiln")


@pytest.mark.gpu
def test_tensors_come_back_on_their_gpu(program_of, through_file):
    base = torch.arange(10.0, device="cuda")
    loaded = through_file(program_of(weights={"all": base, "part": base[2:4], "host": torch.ones(2)})).weights
    assert [loaded[name].device.type for name in ("all", "part", "host")] == ["cuda", "cuda", "cpu"]
    loaded["all"][2] = 50.0
    assert loaded["part"].tolist() == [50.0, 3.0]
