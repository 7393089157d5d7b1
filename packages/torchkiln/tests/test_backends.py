"""The switches of the process: what they say, and what compilations make of them."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import torchkiln
from torchkiln import backends
from torchkiln_core import Options
from torchkiln_runtime import find_library


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    backends.enabled, backends.allow_tf32 = True, None
    backends.preferred_engine_library("default")
    backends.plan_cache.max_size = 0


def resolved(**options: Any) -> Options:
    return backends.resolve(Options.from_keywords(options))


def test_what_is_installed() -> None:
    library = find_library()
    assert backends.is_built() is (library is not None)
    assert backends.version() == (None if library is None else library.version)
    if not torch.cuda.is_available():
        assert backends.is_available() is False


def test_tf32_follows_torch_until_it_is_set() -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        for products, convolutions in ((False, False), (False, True), (True, False), (True, True)):
            torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = products, convolutions
            assert backends.allow_tf32 is (products and convolutions)
            assert resolved().build.allow_tf32 is (products and convolutions)
        backends.allow_tf32 = False
        assert resolved().build.allow_tf32 is False
        assert resolved(allow_tf32=True).build.allow_tf32 is True
        backends.allow_tf32 = None
        assert backends.allow_tf32 is True
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def test_float32_matmul_precision_counts_as_torchs_flag() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert backends.allow_tf32 is torch.backends.cudnn.allow_tf32
        torch.set_float32_matmul_precision("highest")
        assert backends.allow_tf32 is False
    finally:
        torch.set_float32_matmul_precision(before)


def test_both_apis_of_torch_count() -> None:
    script = """
import torch, torchkiln
from torch import backends
seen = []
for change in (
    lambda: setattr(backends.cuda.matmul, "fp32_precision", "tf32"),
    lambda: setattr(backends.cudnn.conv, "fp32_precision", "ieee"),
    lambda: setattr(backends.cudnn.conv, "fp32_precision", "tf32"),
    lambda: setattr(backends.cuda.matmul, "fp32_precision", "ieee"),
    lambda: setattr(backends.cuda.matmul, "fp32_precision", "none"),
    lambda: setattr(backends, "fp32_precision", "tf32"),
    lambda: torch.set_float32_matmul_precision("medium"),
):
    change()
    seen.append(torchkiln.backends.allow_tf32)
print(*seen)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "False", "True", "False", "False", "True", "True"]


def test_disabled_means_the_reference_engine() -> None:
    assert resolved().runtime.engine == "auto"
    backends.enabled = False
    assert backends.enabled is False
    assert resolved().runtime.engine == "reference"
    assert resolved(engine="tensorrt").runtime.engine == "tensorrt"
    compiled = torchkiln.compile(torch.nn.ReLU(), (torch.ones(3),), min_block_size=1)
    assert compiled.report.engine == "reference"


@pytest.mark.parametrize(("name", "value"), [("enabled", 1), ("allow_tf32", "yes"), ("deterministic", 1), ("benchmark", None)])
def test_flags_are_booleans(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=rf"torchkiln\.backends\.{name}: expected a bool"):
        setattr(backends, name, value)
    if value is not None:
        with pytest.raises(TypeError, match=f"{name}: expected a bool"), backends.flags(**{name: value}):
            pass


FLAGS = ("enabled", "allow_tf32", "deterministic", "benchmark")


def test_threads_have_flags_of_their_own() -> None:
    gate = threading.Barrier(8)

    def look(number: int) -> list[bool]:
        wanted = [bool(number >> bit & 1) for bit in range(len(FLAGS))]
        found = []
        for _ in range(20):
            with backends.flags(**dict(zip(FLAGS, wanted, strict=True))):
                gate.wait()
                build, runtime = resolved().build, resolved().runtime
                found.append([getattr(backends, name) for name in FLAGS] == wanted)
                found.append((build.allow_tf32, build.deterministic) == (wanted[1], wanted[2]))
                found.append(build.benchmark is (wanted[3] and not wanted[2]))
                found.append((runtime.engine == "reference") is not wanted[0])
        return found

    with ThreadPoolExecutor(8) as pool:
        assert all(all(found) for found in pool.map(look, range(3, 11)))
    assert [getattr(backends, name) for name in FLAGS] == [True, False, False, False]


def test_a_size_set_by_threads_at_once_is_one_cache() -> None:
    gate = threading.Barrier(8)

    def enlarge(_: int) -> int:
        gate.wait()
        backends.plan_cache.max_size = 3
        return id(backends.plan_cache.for_compilation())

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(enlarge, range(8)))) == 1


def test_the_preferred_library() -> None:
    assert backends.preferred_engine_library() == "default"
    assert backends.preferred_engine_library("tensorrt") == "tensorrt"
    assert resolved().build.library == "tensorrt"
    assert resolved(library="tensorrt_rtx").build.library == "tensorrt_rtx"
    assert backends.preferred_engine_library("reference") == "reference"
    assert (resolved().build.library, resolved().runtime.engine) == (None, "reference")
    assert backends.preferred_engine_library("default") == "default"
    with pytest.raises(ValueError, match="expected one of default, tensorrt, tensorrt_rtx, reference, got 'cudnn'"):
        backends.preferred_engine_library("cudnn")


@pytest.mark.skipif(find_library("tensorrt") is not None, reason="tensorrt: it is installed")
def test_a_library_that_is_not_installed_is_an_error_when_it_is_needed() -> None:
    with pytest.raises(torchkiln.BuildError, match="tensorrt is not installed"):
        torchkiln.compile(torch.nn.ReLU(), (torch.ones(3),), library="tensorrt", engine="tensorrt", min_block_size=1)
    with pytest.raises(torchkiln.BuildError, match="no engine library: tensorrt is not installed"):
        torchkiln.compile(torch.nn.ReLU(), (torch.ones(3),), library="tensorrt", targets=["sm_89"], min_block_size=1)


def test_flags_hold_in_their_block_and_thread_only() -> None:
    seen: list[bool] = []
    with backends.flags(enabled=False, allow_tf32=True):
        assert (backends.enabled, backends.allow_tf32) == (False, True)
        with backends.flags(enabled=True):
            assert (backends.enabled, backends.allow_tf32) == (True, True)
        thread = threading.Thread(target=lambda: seen.append(backends.enabled))
        thread.start()
        thread.join()
        backends.allow_tf32 = False
        assert backends.allow_tf32 is False
    assert seen == [True]
    assert backends.enabled is True


def test_the_plan_cache_is_shared_when_it_has_a_size() -> None:
    pytest.importorskip("tensorrt_rtx")
    net, x = torch.nn.Linear(3, 4), torch.randn(2, 3)

    def build() -> None:
        torchkiln.compile(net, (x,), engine="reference", targets=["sm_89"])

    assert backends.plan_cache.max_size == 0
    build()
    assert backends.plan_cache.size == 0
    backends.plan_cache.max_size = 2
    build()
    assert backends.plan_cache.size == 1
    build()
    assert backends.plan_cache.size == 1
    with torch.no_grad():
        net.weight.mul_(2)
    build()
    assert backends.plan_cache.size == 2
    backends.plan_cache.max_size = 1
    assert backends.plan_cache.size == 1
    backends.plan_cache.clear()
    assert backends.plan_cache.size == 0
    with pytest.raises(ValueError, match="expected 0 or more, got -1"):
        backends.plan_cache.max_size = -1


def test_the_size_of_the_plan_cache_is_a_number() -> None:
    with pytest.raises(TypeError, match=r"plan_cache\.max_size: expected an int, got '8'"):
        backends.plan_cache.max_size = "8"  # type: ignore[assignment]
