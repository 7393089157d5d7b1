"""What each switch of ``torchkiln.backends`` changes on a GPU. TensorRT-RTX has one TF32 mode in a process, so those run in others."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.export import Dim

import torchkiln
from torchkiln import backends, benchmarking
from torchkiln.benchmarking import milliseconds_in_a_row
from torchkiln_testing import OpClass, assert_same

pytestmark = pytest.mark.gpu

OPTIONS: dict[str, Any] = {"engine": "tensorrt", "min_block_size": 1}


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    backends.deterministic, backends.benchmark, backends.allow_tf32 = None, False, None
    torch.use_deterministic_algorithms(False)
    torch.compiler.reset()


def in_a_process(script: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


TF32 = """
import sys, torch, torchkiln
how, allowed = sys.argv[1], sys.argv[2] == "on"
torch.manual_seed(0)
net, x = torch.nn.Linear(1024, 256).cuda(), torch.randn(64, 1024, device="cuda")
if how == "flag":
    torchkiln.backends.allow_tf32 = allowed
elif how == "torch":
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
options = {"engine": "tensorrt", "allow_tf32": allowed} if how == "option" else {"engine": "tensorrt"}
compiled = torchkiln.compile(net, (x,), **options)
true = x.double() @ net.weight.double().T + net.bias.double()
for _ in range(4):
    error = ((compiled(x).double() - true).abs().max() / true.abs().max()).item()
print(error)
"""


@pytest.mark.parametrize("how", ["flag", "torch", "option"])
def test_tf32_rounds_factors_to_ten_bits_where_it_is_allowed(how: str) -> None:
    off, on = (float(in_a_process(TF32, how, allowed)) for allowed in ("off", "on"))
    # One factor is rounded by up to 2**-11 of its size, and errors of 1024 products average out: on an H200 eager has 2.9e-4.
    assert 1e-4 < on < 1e-3
    # Without TF32 eager has 3e-7 and the engine 1.1e-5: TensorRT-RTX's fp32 is not made of products that are rounded to 24 bits each.
    assert off < on / 10


REPRODUCIBLE = """
import hashlib, sys, time, torch, torchkiln
from torch.export import Dim

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.LayerNorm(256)
        self.wide, self.head = torch.nn.Linear(8192, 256), torch.nn.Linear(256, 16)

    def forward(self, x, rows, values):
        y = torch.relu(self.conv(x)).flatten(1)
        y = self.norm(self.wide(y))
        y = torch.nn.functional.scaled_dot_product_attention(*(y.unflatten(1, (4, 1, 64)).transpose(1, 2),) * 3).flatten(1)
        y = torch.index_put(y, (rows,), values) + y.cumsum(1)
        best, places = (y * 4).round().topk(8)
        return self.head(torch.softmax(y, 1)), y.sum(), best, places

torch.manual_seed(0)
net = Net().eval().cuda()
n = Dim("n", min=2, max=32)
x, rows, values = torch.randn(8, 3, 16, 16, device="cuda"), torch.randint(0, 2, (512,), device="cuda"), torch.randn(512, 256, device="cuda")
compiled = torchkiln.compile(
    net, (x, rows, values), dynamic_shapes=({0: n}, None, None), engine="tensorrt", min_block_size=1, deterministic=True
)
print(*(segment.kind for segment in compiled.report.segments))
digests = {}
for round in range(6):
    for size in (8, 5, 32):
        torch.manual_seed(size)
        results = compiled(torch.randn(size, 3, 16, 16, device="cuda"), rows, values)
        digest = hashlib.sha256(b"".join(part.cpu().numpy().tobytes() for part in results)).hexdigest()
        digests.setdefault(size, set()).add(digest)
    time.sleep(0.2)  # kernels that are compiled in the background would be ready by the last rounds
print(*(len(found) for found in digests.values()))
print(*(found.pop() for found in digests.values()))
"""


def test_deterministic_programs_give_the_same_bits_in_every_run_and_process() -> None:
    first, second = (in_a_process(REPRODUCIBLE).splitlines() for _ in range(2))
    assert first[0] == "engine torch engine"
    assert first[1] == "1 1 1"
    assert first == second


def test_writes_in_any_order_become_reproducible_in_pytorch() -> None:
    def write(x: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.index_put(x * 2, (rows,), values)) + 1

    x, values = torch.zeros(4, 64, device="cuda"), torch.randn(4096, 64, device="cuda")
    rows = torch.randint(0, 4, (4096,), device="cuda")
    kinds = []
    for deterministic in (False, True):
        compiled = torchkiln.compile(write, (x, rows, values), **OPTIONS, deterministic=deterministic)
        kinds.append([segment.kind for segment in compiled.report.segments])
    assert kinds == [["engine"], ["engine", "torch", "engine"]]
    torch.use_deterministic_algorithms(True)
    expected = write(x, rows, values)
    torch.use_deterministic_algorithms(False)
    for _ in range(5):
        assert torch.equal(compiled(x, rows, values), expected)


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Milliseconds that were measured, in PyTorch and in an engine by turns."""
    measured: list[float] = []

    def timer(run: Callable[[], Any], device: torch.device) -> float:
        measured.append(milliseconds_in_a_row(run, device))
        return measured[-1]

    monkeypatch.setattr(benchmarking, "milliseconds_in_a_row", timer)
    return measured


@pytest.mark.parametrize("entry", ["aot", "jit"])
@pytest.mark.parametrize(
    "net", [torch.nn.ReLU(), torch.nn.Sequential(*(torch.nn.Softplus() for _ in range(100)))], ids=["one call", "many"]
)
def test_what_is_measured_to_be_faster_runs(net: torch.nn.Module, entry: str, times: list[float]) -> None:
    reports: list[torchkiln.Report] = []
    x = torch.randn(16, device="cuda")
    options = {**OPTIONS, "benchmark": True, "on_report": reports.append}
    if entry == "aot":
        compiled: Any = torchkiln.compile(net, (x,), **options)
    else:
        compiled = torch.compile(net, backend="torchkiln", options=options)
    with torch.no_grad():
        assert_same(net(x), compiled(x), OpClass.MODEL)
    [report] = reports
    torch_ms, engine_ms = times
    assert torch_ms > 0
    assert engine_ms > 0
    if engine_ms <= torch_ms:
        assert [segment.kind for segment in report.segments] == ["engine"]
        assert not report.rejections
    else:
        assert [segment.kind for segment in report.segments] == ["torch"]
        assert {(rejection.rule, rejection.message) for rejection in report.rejections} == {
            ("benchmark", f"measured {torch_ms:.3f} ms in PyTorch and {engine_ms:.3f} ms in an engine")
        }


def test_the_flag_measures_as_the_option_does(times: list[float]) -> None:
    backends.benchmark = True
    torchkiln.compile(torch.nn.ReLU(), (torch.randn(16, device="cuda"),), **OPTIONS)
    assert len(times) == 2


def test_kernels_for_a_new_size_are_ready_at_its_first_run() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Softmax(1), torch.nn.Linear(512, 64)).eval().cuda()
    x = torch.randn(7, 512, device="cuda")
    compiled = torchkiln.compile(net, (x,), dynamic_shapes=({0: Dim("n", min=2, max=64)},), **OPTIONS, deterministic=True)
    first = compiled(x).clone()
    for _ in range(5):
        time.sleep(0.1)
        assert torch.equal(compiled(x), first)
