"""Save and load: the same outputs in a fresh process, and errors instead of crashes."""

from __future__ import annotations

import dataclasses
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

import torchkiln
from torchkiln import saving
from torchkiln.compiled_module import CompiledModule
from torchkiln_testing import OpClass, assert_same


class Net(torch.nn.Module):
    """Has an engine and a torch segment, a mutated buffer, an aliasing output and a dynamic batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor, scale: float = float("inf"), *, mask: torch.Tensor | None = None) -> dict[str, object]:
        self.calls += 1
        y = torch.relu(self.linear(x)) * self.calls
        return {"y": torch.lgamma(y + 1), "t": x.t(), "n": None, "scale": scale, "rows": x.shape[0]}


def compiled_net(**options: object) -> tuple[Net, CompiledModule]:
    torch.manual_seed(0)
    net = Net().eval()
    dynamic = {"x": {0: Dim("rows", min=1, max=16)}, "scale": None, "mask": {}}
    compiled = torchkiln.compile(
        net,
        (torch.randn(3, 4), float("inf")),
        {"mask": torch.ones(2)},
        dynamic_shapes=dynamic,
        engine="reference",
        min_block_size=1,
        **options,
    )
    return net, compiled


SCRIPT = """
import sys, torch, torchkiln
compiled = torchkiln.load(sys.argv[1], engine="reference")
torch.save([compiled(x, float('inf'), mask=torch.ones(2)) for x in torch.load(sys.argv[2])], sys.argv[3])
"""


def test_a_fresh_process_gives_the_same_results(tmp_path: Path) -> None:
    net, compiled = compiled_net()
    torchkiln.save(compiled, tmp_path / "net.kiln")
    xs = [torch.randn(rows, 4) for rows in (1, 3, 16)]
    torch.save(xs, tmp_path / "xs.pt")
    subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "net.kiln"), str(tmp_path / "xs.pt"), str(tmp_path / "out.pt")], check=True
    )
    with torch.no_grad():
        for x, got in zip(xs, torch.load(tmp_path / "out.pt"), strict=True):
            assert_same(net(x, mask=torch.ones(2)), got, OpClass.REDUCTION)


def test_a_loaded_module_behaves_like_the_compiled_one(tmp_path: Path) -> None:
    net, compiled = compiled_net()
    torchkiln.save(compiled, tmp_path / "net.kiln")
    loaded = torchkiln.load(tmp_path / "net.kiln", engine="reference")
    assert [(s.name, s.kind, s.calls) for s in loaded.report.segments] == [(s.name, s.kind, s.calls) for s in compiled.report.segments]
    assert [r.rule for r in loaded.report.rejections] == ["no-converter"]
    x = torch.randn(5, 4)
    with torch.no_grad():
        for _ in range(3):
            assert_same(net(x, mask=torch.ones(2)), loaded(x, math.inf, mask=torch.ones(2)), OpClass.REDUCTION)
    assert loaded(x, math.inf, mask=torch.ones(2))["t"]._base is x
    with pytest.raises(torchkiln.ShapeOutOfProfile, match="1 to 16, got 17"):
        loaded(torch.randn(17, 4), math.inf, mask=torch.ones(2))
    with pytest.raises(ValueError, match="scale"):
        loaded(x, 1.0, mask=torch.ones(2))


def test_a_loaded_report_is_the_saved_one_but_for_times(tmp_path: Path) -> None:
    _, compiled = compiled_net()
    torchkiln.save(compiled, tmp_path / "net.kiln")
    loaded = torchkiln.load(tmp_path / "net.kiln", engine="reference").report
    assert loaded == dataclasses.replace(compiled.report, stage_ms={}, origin="file")
    assert [segment.flops for segment in loaded.segments] == [segment.flops for segment in compiled.report.segments]
    saved_text = [line for line in str(compiled.report).splitlines() if not line.startswith("time: ")]
    assert str(loaded).splitlines() == saved_text
    assert loaded.to_dot() == compiled.report.to_dot()


def test_figures_that_a_file_does_not_hold_are_shown_as_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "report_to_record", lambda report: None)
    torchkiln.save(compiled_net()[1], tmp_path / "net.kiln")
    report = torchkiln.load(tmp_path / "net.kiln", engine="reference").report
    assert report.shares.flops is None
    assert all(segment.border_bytes is None for segment in report.segments)
    first, _, row, *_ = str(report).splitlines()
    assert re.search(r"in engines: \d+% of calls$", first)
    assert row.split()[3:6] == ["?", "?", "?"]
    assert "FLOPs" not in report.to_dot()
    report.to_html(tmp_path / "report.html")


def test_a_loaded_program_without_an_engine_does_not_claim_a_model(tmp_path: Path) -> None:
    compiled = torchkiln.compile(torch.lgamma, (torch.rand(3),), engine="reference")
    torchkiln.save(compiled, tmp_path / "net.kiln")
    text = str(torchkiln.load(tmp_path / "net.kiln", engine="reference").report)
    assert "0% of calls, 0% of FLOPs" in text
    assert "without an engine the lowered graph runs in PyTorch; a file does not hold the model itself" in text
    assert "without an engine the model itself runs" in str(compiled.report)


@pytest.mark.parametrize(
    "change",
    [
        lambda signature: signature["user_inputs"].append("nothing"),
        lambda signature: signature["convention"]["flat_inputs"].append("nothing"),
        lambda signature: signature["convention"]["flat_inputs"].__setitem__(0, "nothing"),
        lambda signature: signature["convention"]["buffer_inputs"].append("nothing"),
        lambda signature: signature.__setitem__("layouts", {}),
        lambda signature: signature["layouts"].update({name: [[7]] for name in signature["layouts"]}),
        lambda signature: signature["report"]["segments"]["engine_0"]["outputs"][0].update(num_bytes="many"),
        lambda signature: signature["report"].pop("sizes"),
    ],
)
def test_what_contradicts_itself_is_refused(
    change: Callable[[dict[str, Any]], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torchkiln.save(compiled_net()[1], tmp_path / "net.kiln")
    original = saving.load_program

    def altered(path: Path) -> saving.SavedProgram:
        saved = original(path)
        change(saved.signature)
        return saved

    monkeypatch.setattr(saving, "load_program", altered)
    with pytest.raises(torchkiln.PlanFormatError):
        torchkiln.load(tmp_path / "net.kiln", engine="reference")


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.kiln"
    torchkiln.save(compiled_net()[1], path)
    data = path.read_bytes()
    damaged = [data[:-1], data[: len(data) // 2], b"", b"PK\x05\x06" + bytes(18), b"not a file of ours"]
    damaged += [data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :] for place in range(0, len(data), max(1, len(data) // 40))]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(torchkiln.PlanFormatError):
            torchkiln.load(path, engine="reference")
    with pytest.raises(torchkiln.PlanFormatError):
        torchkiln.load(tmp_path / "absent.kiln", engine="reference")


def test_only_compiled_modules_can_be_saved(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"torchkiln\.compile"):
        torchkiln.save(Net(), tmp_path / "net.kiln")  # type: ignore[arg-type]
    compiled = torchkiln.compile(torch.relu, (torch.randn(3),), engine="reference")
    for act in (torchkiln.load, lambda path: torchkiln.save(compiled, path)):
        with pytest.raises(TypeError, match="path: expected the name of a file, got NoneType None"):
            act(None)
    with pytest.raises(torchkiln.PlanError, match=r"(?s)cannot be written.*fix: name a file in a folder that is there"):
        torchkiln.save(compiled, tmp_path / "absent" / "net.kiln")
    with pytest.raises(torchkiln.PlanFormatError, match=r"fix: give the path of a file that torchkiln\.save wrote"):
        torchkiln.load(tmp_path)


def test_a_plan_for_another_version_names_both_sides(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    from torchkiln_runtime import TensorRTLoader

    _, compiled = compiled_net(targets=["sm_89"])
    _, program = compiled.parts
    plan = next(iter(program.segments.values())).plans[0]
    other = dataclasses.replace(plan, target=dataclasses.replace(plan.target, version="1.2.3.4"))
    with pytest.raises(torchkiln.PlanTargetMismatch) as caught:
        TensorRTLoader(torch.device("cuda", 0)).load(other)
    assert "1.2.3.4" in str(caught.value)
    assert plan.target.version in str(caught.value)
    assert "fix:" in str(caught.value)
    torchkiln.save(compiled, tmp_path / "net.kiln")
    loaded = torchkiln.load(tmp_path / "net.kiln", engine="reference")
    assert list(loaded.report.segments[0].plan_bytes or {}) == [str(plan.target)]


def test_a_dtype_without_a_name_in_the_format_is_refused_when_saving(tmp_path: Path) -> None:
    compiled = torchkiln.compile(lambda x: x.view(-1), (torch.ones(3, dtype=torch.uint16),), engine="reference")
    with pytest.raises(torchkiln.PlanError, match="uint16"):
        torchkiln.save(compiled, tmp_path / "net.kiln")
    assert list(tmp_path.iterdir()) == []


def test_keys_that_the_format_does_not_hold_are_refused_when_saving(tmp_path: Path) -> None:
    def by_pair(x: torch.Tensor) -> dict[Any, torch.Tensor]:
        return {"sum": torch.relu(x) + 1, (1, 2): torch.relu(x)}

    compiled = torchkiln.compile(by_pair, (torch.randn(3),), engine="reference", min_block_size=1)
    with pytest.raises(torchkiln.PlanError, match=r"key \(1, 2\), a tuple"):
        torchkiln.save(compiled, tmp_path / "pairs.kiln")


def test_the_device_to_load_on_is_checked(tmp_path: Path) -> None:
    x = torch.randn(3)
    torchkiln.save(torchkiln.compile(torch.relu, (x,), engine="reference", min_block_size=1), tmp_path / "net.kiln")
    assert_same(torch.relu(x), torchkiln.load(tmp_path / "net.kiln", engine="reference", device="cpu:0")(x))
    for device in ("oven", "meta", ["cuda"]):
        with pytest.raises(ValueError, match=f"device: expected 'cpu'.*{re.escape(repr(device))}"):
            torchkiln.load(tmp_path / "net.kiln", engine="reference", device=device)  # type: ignore[arg-type]
