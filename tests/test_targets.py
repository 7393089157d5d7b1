"""Plans built on a machine without a GPU, for other machines; and a machine without a TensorRT library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from example_models import EXAMPLES

import torchkiln
from torchkiln_testing import OpClass, assert_same

TARGETS = ["sm_86", "sm_89", "sm_120"]
OFTEN = ("small_conv_net", "resnet18", "bert", "whisper_encoder")
"""Built in the default tests; those of a dynamic batch build others."""
ROWS = [
    pytest.param(name, dtype, marks=() if name in OFTEN and dtype is torch.float32 else pytest.mark.slow)
    for name in EXAMPLES
    for dtype in (torch.float32, torch.float16, torch.bfloat16)
]


@pytest.mark.parametrize(("name", "dtype"), ROWS)
def test_plans_for_other_gpus_are_built_here(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    torch.manual_seed(0)
    example = EXAMPLES[name](dtype, 1)
    with torch.no_grad():
        expected = example.model(*example.args, **example.kwargs)
    compiled = torchkiln.compile(
        example.model, example.args, example.kwargs, targets=TARGETS, engine="reference", require_full_compilation=True
    )
    assert_same(expected, compiled(*example.args, **example.kwargs), OpClass.MODEL)
    [segment] = compiled.report.segments
    [(target, size)] = (segment.plan_bytes or {}).items()
    assert all(gpu in target for gpu in TARGETS)
    weights = sum(parameter.numel() * parameter.element_size() for parameter in example.model.parameters())
    assert size > weights // 2
    torchkiln.save(compiled, tmp_path / "model.kiln")
    loaded = torchkiln.load(tmp_path / "model.kiln", engine="reference")
    assert_same(expected, loaded(*example.args, **example.kwargs), OpClass.MODEL)


WITHOUT_LIBRARY = """
import sys

sys.modules["tensorrt"] = sys.modules["tensorrt_rtx"] = None
import torch, torchkiln
net, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval(), torch.randn(2, 4)
for _ in range(2):
    compiled = torchkiln.compile(net, (x,))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x))
    assert [segment.kind for segment in compiled.report.segments] == ["engine"], compiled.report
try:
    torchkiln.compile(net, (x,), targets=["sm_89"])
except torchkiln.BuildError as error:
    print(error)
"""


def test_a_machine_without_a_library_compiles_runs_and_says_so_once() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_LIBRARY], check=True, capture_output=True, text=True)
    assert done.stderr.count("no TensorRT library is installed: engine segments run on the reference engine") == 1
    assert "no engine library" in done.stdout
    assert "fix:" in done.stdout


BY_NAME = """
import torch
net, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval(), torch.randn(2, 4)
compiled = torch.compile(net, backend="torchkiln", options={"engine": "reference"})
import sys
assert "torchkiln" in torch._dynamo.list_backends()
with torch.no_grad():
    torch.testing.assert_close(compiled(x), net(x))
assert "torchkiln" in sys.modules
"""


def test_torch_compile_finds_the_backend_without_an_import() -> None:
    subprocess.run([sys.executable, "-c", BY_NAME], check=True)
