"""``deterministic``: what it follows, what it moves to PyTorch, and how that runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import torchkiln
from torchkiln import backends
from torchkiln.determinism import deterministic_torch
from torchkiln_core import Options

OPTIONS: dict[str, Any] = {"engine": "reference", "min_block_size": 1}
X = torch.arange(6.0).reshape(3, 2)
ROWS = torch.tensor([0, 2, 0])


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    backends.deterministic, backends.benchmark = None, False
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark = False
    torch.compiler.reset()


@torch.library.custom_op("torchkiln_tests::mode", mutates_args=())
def mode(x: torch.Tensor) -> torch.Tensor:
    """``[*] -> [3]``: how PyTorch is set while the call runs."""
    found = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
    )
    return torch.tensor(found, device=x.device)


@mode.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(3, dtype=torch.bool, device=x.device)


def reads_mode(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.relu(x) + 1, mode(x)


def writes(x: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.index_put(x + 1, (rows,), values)) * 2


def resolved(**options: Any) -> Options:
    return backends.resolve(Options.from_keywords(options))


def test_the_flag_follows_torch_until_it_is_set() -> None:
    assert backends.deterministic is False
    torch.use_deterministic_algorithms(True)
    assert backends.deterministic is True
    assert resolved().build.deterministic is True
    assert resolved(deterministic=False).build.deterministic is False
    backends.deterministic = False
    assert resolved().build.deterministic is False
    backends.deterministic = None
    assert backends.deterministic is True
    torch.use_deterministic_algorithms(False)
    with backends.flags(deterministic=True):
        assert resolved().build.deterministic is True
    assert resolved().build.deterministic is False


def test_both_flags_enter_the_plan_key() -> None:
    pytest.importorskip("tensorrt_rtx")
    keys = set()
    for options in ({}, {"deterministic": True}, {"benchmark": True}):
        compiled = torchkiln.compile(torch.nn.ReLU(), (X,), **OPTIONS, **options, targets=["sm_89"])
        [made] = compiled.parts[1].segments.values()
        keys.add(made.plans[0].key)
    assert len(keys) == 3


def test_writes_in_any_order_run_in_pytorch() -> None:
    values = torch.randn(3, 2)
    kinds = {}
    for deterministic in (False, True):
        compiled = torchkiln.compile(writes, (X, ROWS, values), **OPTIONS, deterministic=deterministic)
        kinds[deterministic] = [segment.kind for segment in compiled.report.segments]
        torch.testing.assert_close(compiled(X, torch.tensor([0, 1, 2]), values), writes(X, torch.tensor([0, 1, 2]), values))
        rules = [rejection.rule for rejection in compiled.report.rejections]
        assert rules == (["deterministic"] if deterministic else [])
    assert kinds == {False: ["engine"], True: ["engine", "torch", "engine"]}


def test_a_plan_of_the_division_says_so_too() -> None:
    report = torchkiln.explain(writes, (X, ROWS, torch.randn(3, 2)), min_block_size=1, deterministic=True)
    [rejection] = report.rejections
    assert rejection.rule == "deterministic"
    assert "does not depend on the order of writes" in rejection.message


@pytest.mark.parametrize("way", ["ahead of time", "just in time", "without an engine"])
def test_what_runs_in_pytorch_runs_under_torchs_switches(way: str) -> None:
    torch.backends.cudnn.benchmark = True
    options = {**OPTIONS, "deterministic": True}
    if way == "just in time":
        compiled = torch.compile(reads_mode, backend="torchkiln", options=options)
    elif way == "without an engine":
        compiled = torchkiln.compile(mode, (X,), **options)
        assert [segment.kind for segment in compiled.report.segments] == ["torch"]
    else:
        compiled = torchkiln.compile(reads_mode, (X,), **options)
        assert [segment.kind for segment in compiled.report.segments] == ["engine", "torch"]
    result = compiled(X)
    assert (result if way == "without an engine" else result[1]).tolist() == [True, False, False]
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.benchmark


def test_without_the_flag_torch_runs_as_it_is_set() -> None:
    compiled = torchkiln.compile(reads_mode, (X,), **OPTIONS)
    assert compiled(X)[1].tolist() == [False, False, False]


def test_warnings_in_place_of_errors_stay_the_users_choice() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    compiled = torchkiln.compile(reads_mode, (X,), **OPTIONS)
    assert compiled(X)[1].tolist() == [True, True, False]
    assert torch.is_deterministic_algorithms_warn_only_enabled()


@pytest.mark.parametrize("loaded", [False, True])
def test_what_torch_cannot_do_reproducibly_is_its_error(loaded: bool, tmp_path: Path) -> None:
    def put(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).put(ROWS, torch.ones(3), accumulate=False) + 1

    compiled: Any = torchkiln.compile(put, (X,), **OPTIONS, deterministic=True)
    if loaded:
        torchkiln.save(compiled, tmp_path / "put.kiln")
        compiled = torchkiln.load(tmp_path / "put.kiln", engine="reference")
    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        compiled(X)
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("engines", [True, False])
def test_a_backward_pass_is_deterministic_too(engines: bool) -> None:
    seen: list[bool] = []

    @torch.library.custom_op(f"torchkiln_tests::watched_{engines}", mutates_args=())
    def watched(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.are_deterministic_algorithms_enabled())
        return x.clone()

    watched.register_fake(torch.empty_like)
    watched.register_autograd(lambda context, gradient: watched(gradient))
    x = torch.randn(3, requires_grad=True)
    reports: list[torchkiln.Report] = []
    options = {**OPTIONS, "deterministic": True, "on_report": reports.append, "torch_executed_ops": [] if engines else ["aten.mul"]}
    torch.compile(lambda x: watched(x * 2), backend="torchkiln", options=options)(x).sum().backward()
    assert [segment.kind for segment in reports[0].segments] == (["engine", "torch"] if engines else ["torch"])
    assert seen == [True, True]
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2, 2]


def test_torchs_switch_compiles_anew() -> None:
    reports: list[torchkiln.Report] = []
    compiled = torch.compile(writes, backend="torchkiln", options={**OPTIONS, "on_report": reports.append})
    values = torch.randn(3, 2)
    for deterministic in (False, True, False):
        torch.use_deterministic_algorithms(deterministic)
        compiled(X, ROWS, values)
    assert [[segment.kind for segment in report.segments] for report in reports] == [["engine"], ["engine", "torch", "engine"]]


def test_the_last_of_several_threads_gives_the_switches_back() -> None:
    inside, leave = threading.Barrier(2), threading.Event()

    def hold() -> None:
        with deterministic_torch():
            inside.wait()
            leave.wait()

    thread = threading.Thread(target=hold)
    with deterministic_torch():
        thread.start()
        inside.wait()
    assert torch.are_deterministic_algorithms_enabled()
    leave.set()
    thread.join()
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("options", [{"specialize": 3}, {"out_of_profile": "rebuild"}, {"kernel_specialization": "lazy"}])
def test_options_that_change_kernels_later_are_refused(options: dict[str, Any]) -> None:
    [(name, value)] = options.items()
    with pytest.raises(ValueError, match=f"{name}={value!r}: with deterministic=True, expected nothing that"):
        resolved(**options, deterministic=True)
    assert getattr(resolved(**options).runtime, name) == value


def test_kernels_for_a_size_are_waited_for() -> None:
    assert resolved(deterministic=True).runtime.kernel_specialization == "eager"
    assert resolved(deterministic=True, kernel_specialization="none").runtime.kernel_specialization == "none"


def test_sizes_outside_run_under_torchs_switches_too() -> None:
    shapes = [torchkiln.Input(min_shape=(2, 2), opt_shape=(4, 2), max_shape=(8, 2))]
    compiled = torchkiln.compile(reads_mode, inputs=shapes, **OPTIONS, out_of_profile="torch", deterministic=True)
    assert compiled(torch.randn(9, 2))[1].tolist() == [True, False, False]


def test_measuring_gives_way(caplog: pytest.LogCaptureFixture) -> None:
    backends.warn_once.cache_clear()
    backends.benchmark = True
    assert (resolved().build.deterministic, resolved().build.benchmark) == (False, True)
    for settings in (resolved(deterministic=True), resolved(deterministic=True)):
        assert (settings.build.deterministic, settings.build.benchmark) == (True, False)
    [record] = caplog.records
    assert "nothing is measured where programs must be deterministic" in record.getMessage()
    with pytest.raises(ValueError, match="benchmark: expected False with deterministic=True"):
        resolved(deterministic=True, benchmark=True)
