"""Loading onto a GPU: with the saved plan, with one for another version, and with none."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch.export import Dim

import torchkiln
from torchkiln.compiled_module import CompiledModule
from torchkiln_core import Network, Plan
from torchkiln_runtime import TensorRTBuilder
from torchkiln_testing import OpClass, assert_same

pytestmark = pytest.mark.gpu


class Net(torch.nn.Module):
    """An engine before and after an operator that stays in PyTorch, with a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.relu(self.second(torch.lgamma(torch.sigmoid(self.first(x)) + self.calls)))


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[Network]:
    """The networks that were built since the test emptied the list."""
    built: list[Network] = []
    build = TensorRTBuilder.build

    def counted(self: TensorRTBuilder, network: Network) -> Plan:
        built.append(network)
        return build(self, network)

    monkeypatch.setattr(TensorRTBuilder, "build", counted)
    return built


def compiled_net(device: str, **options: object) -> tuple[Net, CompiledModule]:
    torch.manual_seed(0)
    net = Net().eval().to(device)
    args = (torch.randn(3, 4, device=device),)
    return net, torchkiln.compile(net, args, dynamic_shapes=({0: Dim("rows", min=1, max=16)},), min_block_size=1, **options)


def with_plans_for(compiled: CompiledModule, version: str) -> CompiledModule:
    _, program = compiled.parts
    for name, made in program.segments.items():
        plans = tuple(dataclasses.replace(plan, target=dataclasses.replace(plan.target, version=version)) for plan in made.plans)
        program.segments[name] = dataclasses.replace(made, plans=plans)
    return compiled


def assert_runs_like(net: Net, loaded: torch.nn.Module) -> None:
    net = net.to("cuda")
    with torch.no_grad():
        for rows in (1, 3, 16):
            x = torch.randn(rows, 4, device="cuda")
            assert_same(net(x), loaded(x), OpClass.MODEL)


@pytest.mark.parametrize(("rebuild", "expected"), [("auto", 0), ("never", 0), ("always", 2)])
def test_the_saved_plan_is_used(rebuild: str, expected: int, tmp_path: Path, builds: list[Network]) -> None:
    net, compiled = compiled_net("cuda", engine="tensorrt")
    torchkiln.save(compiled, tmp_path / "net.kiln")
    builds.clear()
    loaded = torchkiln.load(tmp_path / "net.kiln", engine="tensorrt", rebuild=rebuild)
    assert len(builds) == expected
    assert_runs_like(net, loaded)


@pytest.mark.parametrize("rebuild", ["auto", "always"])
def test_a_plan_of_another_version_is_built_anew(rebuild: str, tmp_path: Path, builds: list[Network]) -> None:
    net, compiled = compiled_net("cuda", engine="tensorrt")
    torchkiln.save(with_plans_for(compiled, "1.2.3.4"), tmp_path / "net.kiln")
    builds.clear()
    loaded = torchkiln.load(tmp_path / "net.kiln", engine="tensorrt", rebuild=rebuild)
    assert len(builds) == 2
    assert_runs_like(net, loaded)


def test_a_plan_of_another_version_is_refused_by_never(tmp_path: Path, builds: list[Network]) -> None:
    _, compiled = compiled_net("cuda", engine="tensorrt")
    torchkiln.save(with_plans_for(compiled, "1.2.3.4"), tmp_path / "net.kiln")
    builds.clear()
    with pytest.raises(torchkiln.PlanTargetMismatch, match=r"1\.2\.3\.4.*in use here"):
        torchkiln.load(tmp_path / "net.kiln", engine="tensorrt", rebuild="never")
    assert builds == []


def test_a_program_compiled_on_a_cpu_moves_to_the_gpu(tmp_path: Path, builds: list[Network]) -> None:
    net, compiled = compiled_net("cpu", engine="reference")
    torchkiln.save(compiled, tmp_path / "net.kiln")
    with pytest.raises(torchkiln.PlanTargetMismatch, match="holds no plan"):
        torchkiln.load(tmp_path / "net.kiln", engine="tensorrt", device="cuda", rebuild="never")
    assert_runs_like(net, torchkiln.load(tmp_path / "net.kiln", engine="tensorrt", device="cuda"))
    assert len(builds) == 2


def test_a_program_compiled_for_targets_on_a_cpu_runs_on_the_gpu(tmp_path: Path) -> None:
    net, compiled = compiled_net("cpu", engine="reference", targets=["sm_86", "sm_89", "sm_120"])
    torchkiln.save(compiled, tmp_path / "net.kiln")
    assert_runs_like(net, torchkiln.load(tmp_path / "net.kiln", engine="tensorrt", device="cuda"))
