"""The report: its numbers, its text forms, and its page in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import torchkiln
from torchkiln.cli import main
from torchkiln.demo.mixed import mixed

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


class Net(torch.nn.Module):
    """An engine, a call without converter, an engine."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(16, 32)
        self.second = torch.nn.Linear(32, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.lgamma(self.first(x).abs() + 1))


@pytest.fixture(scope="module")
def report() -> torchkiln.Report:
    rows = torch.export.Dim("rows", min=1, max=16)
    return torchkiln.explain(Net(), (torch.randn(4, 16),), dynamic_shapes=({0: rows},), min_block_size=1)


def test_segments_have_layers_flops_weights_and_borders(report: torchkiln.Report) -> None:
    first, middle, last = report.segments
    assert [segment.kind for segment in report.segments] == ["engine", "torch", "engine"]
    assert first.layers > 0
    assert middle.layers == 0
    # The range is tuned for four rows: a product of 4 x 16 x 32, then one operation per element of abs and add.
    assert first.flops == 2 * 4 * 16 * 32 + 2 * 4 * 32
    assert middle.flops == 4 * 32
    assert last.flops == 2 * 4 * 32 * 8
    assert first.weight_bytes == (16 * 32 + 32) * 4
    assert last.weight_bytes == 32 * 8 * 4
    assert first.border_bytes == (4 * 16 + 4 * 32) * 4
    [entering] = first.inputs
    [(name, sizes)] = entering.profile.items()
    assert entering.type == f"float32[{name}, 16]"
    assert sizes == (1, 4, 16)
    assert not entering.data_dependent


def test_explain_says_what_compile_does(report: torchkiln.Report) -> None:
    rows = torch.export.Dim("rows", min=1, max=16)
    compiled = torchkiln.compile(Net(), (torch.randn(4, 16),), dynamic_shapes=({0: rows},), min_block_size=1, engine="reference").report
    assert report.engine == "not built"
    assert [(item.name, item.calls, item.layers, item.flops, item.weights) for item in compiled.segments] == [
        (item.name, item.calls, item.layers, item.flops, item.weights) for item in report.segments
    ]
    assert [(item.node, item.rule) for item in compiled.rejections] == [(item.node, item.rule) for item in report.rejections]


def test_shares(report: torchkiln.Report) -> None:
    flops = [segment.flops for segment in report.segments]
    assert report.shares.calls == pytest.approx(4 / 5)
    assert report.shares.flops == pytest.approx((flops[0] + flops[2]) / sum(flops))
    assert report.shares.weights == 1.0


def test_refusals_have_rule_reason_source_and_fix(report: torchkiln.Report) -> None:
    [refusal] = report.rejections
    assert refusal.rule == "no-converter"
    assert refusal.where is not None
    assert "test_report.py" in refusal.where
    assert "converter" in report.fix(refusal)
    text = str(report)
    assert "[no-converter]" in text
    assert "test_report.py" in text
    assert "fix: " in text
    assert all(len(line) < 400 for line in text.splitlines())


@pytest.mark.parametrize(
    ("function", "args", "rule", "message"),
    [
        (
            lambda x: x.median(0).indices * 2,
            (torch.rand(5, 3),),
            "no-converter",
            "no converter is registered for this operator; its decomposition requires that nobody reads its indices, which PyTorch leaves "
            "open among equal elements",
        ),
        (
            lambda x: x.sort(descending=True).indices + 1,
            (torch.rand(5000),),
            "static",
            "requires a static dimension of 1 to 3840 elements; its decomposition requires stable=True, or that nobody reads its indices, "
            "which PyTorch leaves open among equal elements",
        ),
        (
            lambda x: (x & (x + 1)) * 2,
            (torch.ones(1, 1, 1, 1, 1, 1, 2, 3, dtype=torch.int64),),
            "no-converter",
            "no converter is registered for this operator; its decomposition calls aten.bitwise_and.Tensor (self: expected bool, got "
            "int64; its decomposition requires at most 7 dimensions)",
        ),
    ],
    ids=["median", "sort", "bits"],
)
def test_a_refusal_names_the_limit_of_the_decomposition(function: Any, args: tuple[Any, ...], rule: str, message: str) -> None:
    report = torchkiln.explain(function, args, min_block_size=1)
    [refusal] = [item for item in report.rejections if item.rule not in ("border-cost", "min-block-size")]
    assert (refusal.rule, refusal.message) == (rule, message)
    assert message in str(report)
    assert message in [item["message"] for item in json.loads(report.to_json())["rejections"]]
    compiled = torchkiln.compile(function, args, min_block_size=1, engine="reference")
    assert refusal in compiled.report.rejections
    assert torch.equal(compiled(*args), function(*args))


def test_a_limit_that_only_a_dynamic_size_breaks() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.cummax(0).values * 2

    static = torchkiln.explain(function, (torch.rand(4),), min_block_size=1)
    assert [segment.kind for segment in static.segments] == ["engine"]
    dynamic = torchkiln.explain(function, (torch.rand(4),), dynamic_shapes=({0: torch.export.Dim("n", max=9)},), min_block_size=1)
    [message] = [item.message for item in dynamic.rejections if item.rule == "no-converter"]
    assert message.endswith("; its decomposition requires a known size of the dimension")


def test_every_rule_has_a_fix() -> None:
    from torchkiln.report.fixes import _FIXES

    assert torchkiln.Rejection.__doc__ is not None
    assert set(re.findall(r"``([a-z-]+)``", torchkiln.Rejection.__doc__.split("Rules:")[1])) == set(_FIXES)


def test_like_refusals_are_one_line() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = torch.lgamma(x) + 2
        return x

    text = str(torchkiln.explain(function, (torch.rand(3),)))
    assert "aten.lgamma.default x20" in text
    assert len(text.splitlines()) < 16


def test_data_dependent_sizes_are_marked() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x.sin().lgamma()).float().lgamma() + 1

    report = torchkiln.explain(function, (torch.rand(3),), min_block_size=1)
    values = {value.name: value for segment in report.segments for value in (*segment.inputs, *segment.outputs)}
    assert any(value.data_dependent for value in values.values())
    assert not values[report.inputs[0]].data_dependent


def test_json(report: torchkiln.Report) -> None:
    data = json.loads(report.to_json())
    assert [segment["kind"] for segment in data["segments"]] == ["engine", "torch", "engine"]
    assert data["segments"][0]["weight_bytes"] == report.segments[0].weight_bytes
    assert data["rejections"][0]["fix"]
    assert data["shares"]["calls"] == report.shares.calls


def test_dot(report: torchkiln.Report) -> None:
    dot = report.to_dot()
    for arrow in ("inputs -> engine_0", "engine_0 -> torch_1", "torch_1 -> engine_2", "engine_2 -> results"):
        assert arrow in dot
    if shutil.which("dot"):
        subprocess.run(["dot", "-Tsvg"], input=dot, text=True, check=True, capture_output=True)


def test_page_loads_nothing(report: torchkiln.Report, tmp_path: Path) -> None:
    report.to_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert set(re.findall(r"https?://[^\"'`\s)]+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(link|img|iframe|script[^>]+src)|@import|url\((?!#)", page)


def dom_of(page: Path, call: str = "") -> str:
    """What a browser makes of a page."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip("browser: no chromium on this machine; install Debian's package chromium to open the page")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom"]
    profile = f"--user-data-dir={page.parent / 'profile'}"
    done = subprocess.run([*command, profile, f"{page.as_uri()}#{call}"], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def test_a_browser_draws_the_page(tmp_path: Path) -> None:
    report = torchkiln.explain(*mixed())
    report.to_html(tmp_path / "report.html")
    dom = dom_of(tmp_path / "report.html", "lgamma")
    assert 'data-state="drawn"' in dom
    rooms = re.findall(r'class="room (\w+)"[^>]*data-segment="(\w+)"', dom)
    assert rooms == [("outside", "inputs"), *((item.kind, item.name) for item in report.segments), ("outside", "results")]
    assert re.search(r'data-module="engine_0\|[\w.]+"', dom), "expected folded modules"
    assert dom.count("<path") > len(report.segments)
    [shown] = re.findall(r'<div id="tip"[^>]*>([^<]*)', dom)
    assert "stays in PyTorch [no-converter]" in shown
    assert "mixed.py" in shown
    assert "module: evidence" in shown


def test_names_and_text_cannot_break_the_page(tmp_path: Path) -> None:
    refusal = torchkiln.Rejection("aten.x", "<script>", "no-converter", "</script><script>document.title='broken'</script>", None)
    torchkiln.Report((), (refusal,), "not built", {}).to_html(tmp_path / "report.html")
    dom = dom_of(tmp_path / "report.html")
    assert 'data-state="drawn"' in dom
    assert "<title>torchkiln report</title>" in dom


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = {kind: tmp_path / f"report.{kind}" for kind in ("html", "dot", "json")}
    assert main(["explain", "--demo", "mixed", "--numbers", *(f"--{kind}={path}" for kind, path in paths.items())]) == 0
    text = capsys.readouterr().out
    assert "2 engine segment(s) (explain builds none), 1 in PyTorch" in text
    assert "us per eager call" in text
    assert all(path.stat().st_size > 100 for path in paths.values())


def test_command_on_a_model_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my_models_for_explain.py").write_text(
        "import torch\ndef small():\n    return torch.nn.Linear(3, 2), (torch.rand(1, 3),)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["explain", "my_models_for_explain:small"]) == 0
    assert "1 engine segment(s)" in capsys.readouterr().out
    assert main(["explain", "my_models_for_explain"]) == 2
    assert "module:function" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "got"),
    [("Net", "Net"), ("one_tensor", r"a tuple of Linear and Tensor"), ("three", "a tuple of Linear and tuple and int"), ("table", "dict")],
)
def test_command_says_what_the_function_must_return(
    name: str, got: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong_models_for_explain.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module): pass\n"
        "def one_tensor(): return torch.nn.Linear(3, 2), torch.rand(1, 3)\n"
        "def three(): return torch.nn.Linear(3, 2), (torch.rand(1, 3),), 1\n"
        "def table(): return {}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["explain", f"wrong_models_for_explain:{name}"]) == 2
    expected = (
        f"explain: wrong_models_for_explain:{name}: expected a function that returns a model and a tuple of example arguments, got {got}"
    )
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["html", "dot", "json"])
def test_command_says_where_it_cannot_write(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "absent" / "report"
    assert main(["explain", "--demo", "mixed", f"--{kind}={path}"]) == 1
    assert capsys.readouterr().err == (
        f"explain: {path}: cannot be written: No such file or directory\n  fix: name a file in a folder that is there\n"
    )
