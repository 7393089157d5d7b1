"""What happens where the library builds a plan but cannot compile its kernels, which shows in the first run."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

import torchkiln
from torchkiln.compiled_program import _TRIED, EngineCall
from torchkiln.engines import EngineLoader
from torchkiln_core import BuildError

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class WithoutKernels:
    """An engine of which no run succeeds."""

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        raise BuildError("no kernels")


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineLoader, "load", lambda self, network, plans: WithoutKernels())


def model(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x).cumsum(0).t()


@pytest.mark.parametrize("options", [{}, {"deterministic": True}], ids=["plain", "deterministic"])
def test_the_result_is_right_and_the_reason_is_told_once(no_kernels: None, options: dict[str, bool]) -> None:
    compiled = torchkiln.compile(model, (X,), engine="reference", **options)
    with pytest.warns(torchkiln.FallbackWarning, match="no kernels") as told:
        got = compiled(X)
    assert told[0].filename == __file__
    assert torch.equal(got, model(X))
    assert got.stride() == model(X).stride()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(compiled(X), model(X))


def test_a_range_of_sizes_runs_on(no_kernels: None) -> None:
    compiled = torchkiln.compile(model, (X,), dynamic_shapes=({0: torch.export.Dim("n", max=8)},), engine="reference", specialize=2)
    with pytest.warns(torchkiln.FallbackWarning, match="no kernels"):
        compiled(X)
    assert torch.equal(compiled(X[:2]), model(X[:2]))


def test_full_compilation_makes_it_an_error(no_kernels: None) -> None:
    compiled = torchkiln.compile(model, (X,), engine="reference", require_full_compilation=True)
    with pytest.raises(BuildError, match="no kernels"):
        compiled(X)


def test_a_loaded_program_runs_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torchkiln.save(torchkiln.compile(model, (X,), engine="reference"), tmp_path / "model.kiln")
    loaded = torchkiln.load(tmp_path / "model.kiln", engine="reference")
    for call in loaded._run._engines.values():
        monkeypatch.setattr(call, "engine", WithoutKernels())
    with pytest.warns(torchkiln.FallbackWarning, match="no kernels"):
        assert torch.equal(loaded(X), model(X))


class WithoutSome:
    """An engine without kernels for sizes of 7 and more, and the sizes that it was tried at."""

    def __init__(self) -> None:
        self.tried: list[int] = []

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        (x,) = inputs
        self.tried.append(len(x))
        if len(x) >= 7:
            raise BuildError("no kernels")
        return (x * 2,)


@pytest.mark.filterwarnings("ignore::torchkiln.FallbackWarning")
def test_other_sizes_run_on_the_engine() -> None:
    engine = WithoutSome()
    call = EngineCall(engine, (None,), lambda: lambda x: (x + x,))  # type: ignore[arg-type,return-value]
    for size in (3, 7, 3, 7, 5):
        assert torch.equal(call(torch.ones(size))[0], torch.full((size,), 2.0))
    assert engine.tried == [3, 7, 3, 5]


@pytest.mark.filterwarnings("ignore::torchkiln.FallbackWarning")
def test_an_engine_without_kernels_at_several_sizes_is_given_up() -> None:
    engine = WithoutSome()
    call = EngineCall(engine, (None,), lambda: lambda x: (x + x,))  # type: ignore[arg-type,return-value]
    for size in range(7, 20):
        assert torch.equal(call(torch.ones(size))[0], torch.full((size,), 2.0))
    assert len(engine.tried) == _TRIED
    with pytest.raises(BuildError):
        EngineCall(engine, (None,), None)(torch.ones(7))
