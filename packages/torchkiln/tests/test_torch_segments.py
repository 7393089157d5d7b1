"""Segments in PyTorch: how they run, and how long values live."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import torchkiln
from torchkiln.capture import capture, export_model
from torchkiln.compiled_program import StitchedProgram
from torchkiln.demo.mixed import Attention, Mixed
from torchkiln_core import OpCall, PartitionOptions, Rejection, Segment
from torchkiln_partitioning import LevelPartitioner
from torchkiln_testing import assert_same

KEPT = ("aten.lgamma",)


class Middle(torch.nn.Module):
    """``[*] -> [*]``: two stages with a stretch in PyTorch between them whose first value is dead after one call."""

    def __init__(self, before: torch.nn.Module, after: torch.nn.Module) -> None:
        super().__init__()
        self.before = before
        self.after = after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.lgamma(self.before(x).abs() + 1)
        x = torch.lgamma(x + 1)
        return self.after(torch.lgamma(x + 2))


def convolutions(channels: int) -> torch.nn.Module:
    layers = [torch.nn.Conv2d(channels, channels, 3, padding=1), torch.nn.BatchNorm2d(channels), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Conv2d(channels, channels, 3, padding=1), torch.nn.SiLU())


MODELS: Mapping[str, Callable[[], tuple[torch.nn.Module, tuple[torch.Tensor, ...]]]] = {
    "convolutions": lambda: (Middle(convolutions(8), convolutions(8)), (torch.randn(4, 8, 32, 32),)),
    "transformer": lambda: (Middle(Attention(64, 4), Attention(64, 4)), (torch.randn(4, 32, 64),)),
    "layers": lambda: (
        Middle(torch.nn.Linear(64, 64), torch.nn.Sequential(torch.nn.GELU(), torch.nn.Linear(64, 64))),
        (torch.randn(256, 64),),
    ),
    "mixed": lambda: (Mixed(), (torch.randn(4, 3, 32, 32),)),
}


class PeakOfBytes(TorchDispatchMode):
    """The most bytes of results that are alive at one time, as the operators make them."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                self._alive.setdefault(storage._cdata, (StorageWeakRef(storage), storage.nbytes()))
        self._alive = {key: item for key, item in self._alive.items() if not item[0].expired()}
        self.bytes = max(self.bytes, sum(size for _, size in self._alive.values()))
        return result


def peak_of(call: Callable[..., Any], *args: Any) -> int:
    with torch.no_grad(), PeakOfBytes() as peak:
        call(*args)
    return peak.bytes


class KeepLgamma:
    targets: frozenset[Callable[..., Any]] = frozenset()

    def reject(self, call: OpCall) -> Rejection | None:
        return Rejection.of(call, "no-converter", "kept") if call.target is torch.ops.aten.lgamma.default else None


@pytest.mark.parametrize("name", MODELS)
def test_values_are_freed_after_their_last_use(name: str) -> None:
    model, args = MODELS[name]()
    model.eval()
    program = capture(export_model(model, args, {}, None), model).program
    partition = LevelPartitioner(PartitionOptions(min_block_size=1)).partition(program, KeepLgamma())
    assert [segment.kind for segment in partition.segments].count("engine") >= 2
    assert "torch" in [segment.kind for segment in partition.segments]

    def engine(segment: Segment) -> Callable[..., Any]:
        # Stands for TensorRT: it holds its inputs while it runs, and frees what it needs in between.
        weights = [program.weights[name] for name in segment.weights]
        return lambda *inputs: segment.module(*inputs, *weights)

    engines: dict[str, Any] = {segment.name: engine(segment) for segment in partition.segments if segment.kind == "engine"}
    run = StitchedProgram(partition.module, engines, [program.weights[name] for name in partition.weights])
    with torch.no_grad():
        assert_same(model(*args), run(args)[0])
    assert peak_of(run, args) <= 1.1 * peak_of(model, *args)


def test_a_stretch_in_pytorch_holds_no_dead_argument() -> None:
    def stretch(x: torch.Tensor) -> torch.Tensor:
        x = (x * 2).lgamma().lgamma().lgamma()
        return x + 1

    x = torch.randn(1024)
    compiled = torchkiln.compile(stretch, (x,), engine="reference", min_block_size=1, torch_executed_ops=KEPT)
    assert [segment.kind for segment in compiled.report.segments] == ["engine", "torch", "engine"]
    # Two values at any time, what a call reads and what it makes; and a few scalars.
    assert peak_of(compiled, x) <= 2 * x.nbytes + 64


LARGE: Mapping[str, Callable[[], tuple[torch.nn.Module, torch.Tensor]]] = {
    "convolutions": lambda: (Middle(convolutions(64), convolutions(64)), torch.randn(16, 64, 128, 128)),
    "transformer": lambda: (Middle(Attention(512, 8), Attention(512, 8)), torch.randn(32, 512, 512)),
    "layers": lambda: (
        Middle(torch.nn.Linear(512, 512), torch.nn.Sequential(torch.nn.GELU(), torch.nn.Linear(512, 512))),
        torch.randn(65536, 512),
    ),
}
"""Stretches like those of real models, with activations beside which the scratch memory that an engine always has, some 8 MB, is small."""


@pytest.mark.gpu
@pytest.mark.parametrize("name", LARGE)
def test_peak_of_gpu_memory(name: str) -> None:
    model, x = LARGE[name]()
    model, x = model.eval().to("cuda", torch.float16), x.to("cuda", torch.float16)
    compiled = torchkiln.compile(model, (x,), min_block_size=1, torch_executed_ops=KEPT)
    peaks = []
    for run in (model, compiled):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.no_grad():
            for _ in range(3):  # the second captures CUDA graphs
                run(x)
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] <= 1.1 * peaks[0], peaks


@pytest.fixture
def inductor() -> None:
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("inductor: no C++ compiler on this machine, which it needs on a CPU")


@pytest.mark.usefixtures("inductor")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:torch")
def test_inductor_compiles_segments_in_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    model, args = MODELS["layers"]()
    rows = torch.export.Dim("rows", min=2, max=512)
    options = {"engine": "reference", "min_block_size": 1, "torch_executed_ops": KEPT}
    counter = torch._dynamo.utils.counters["stats"]
    before = counter["unique_graphs"]
    compiled = torchkiln.compile(model, args, dynamic_shapes=({0: rows},), torch_segments="inductor", **options)
    assert_same(model(*args), compiled(*args))
    segments = [segment for segment in compiled.report.segments if segment.kind == "torch"]
    assert counter["unique_graphs"] == before + len(segments) > before
    for count in (2, 100, 512):
        x = torch.randn(count, 64)
        assert_same(model(x), compiled(x))
    assert counter["unique_graphs"] == before + len(segments), "expected one graph for all sizes"


def test_eager_is_the_default_and_names_are_checked() -> None:
    with pytest.raises(ValueError, match="torch_segments: expected one of eager, inductor"):
        torchkiln.compile(torch.relu, (torch.rand(2),), torch_segments="jit")


def test_conditionals_are_written_out() -> None:
    def branching(x: torch.Tensor) -> torch.Tensor:
        h = x.sin().lgamma()
        return torch.cond(h.sum() > 0, lambda a: a.lgamma() + 1, lambda a: a - 1, (h,)).cos()

    x = torch.rand(2, 3)
    compiled = torchkiln.compile(branching, (x,), engine="reference", min_block_size=1, torch_executed_ops=[*KEPT, "higher_order.cond"])
    assert_same(branching(x), compiled(x))
    assert_same(branching(-x), compiled(-x))
