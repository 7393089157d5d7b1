"""Compilations in several threads."""

from __future__ import annotations

import concurrent.futures
import threading
from typing import Any

import torch

import torchkiln
from torchkiln.lowering import Pass, standard_pipeline

aten = torch.ops.aten
X = torch.tensor([1.0, -2.0])


def _by(factor: float) -> Any:
    """A pass that multiplies by another number than the program."""

    def change(gm: torch.fx.GraphModule) -> bool:
        for node in gm.graph.find_nodes(op="call_function", target=aten.mul.Tensor):
            node.args = (node.args[0], factor)
        return True

    return standard_pipeline().with_pass(Pass("change", change))


def test_threads_compile_with_pipelines_of_their_own() -> None:
    """torch.export, FX and torch.compile keep what they trace in variables of the process."""
    meet = threading.Barrier(3, timeout=60)

    def compiled(factor: float, *, jit: bool) -> torch.Tensor:
        def double(x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.silu(x * 2)

        options: dict[str, Any] = {"engine": "reference", "min_block_size": 1, "lowering": _by(factor)}
        meet.wait()
        if jit:
            result: torch.Tensor = torch.compile(double, backend="torchkiln", options=options)(X)
            return result
        return torchkiln.compile(double, (X,), **options)(X)  # type: ignore[no-any-return]

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        results = [pool.submit(compiled, factor, jit=factor == 5.0) for factor in (3.0, 4.0, 5.0)]
        for factor, result in zip((3.0, 4.0, 5.0), results, strict=True):
            torch.testing.assert_close(result.result(), torch.nn.functional.silu(X * factor))
    assert not torch.compiler.is_exporting()


def test_a_compiled_module_runs_while_another_thread_exports() -> None:
    compiled = torchkiln.compile(torch.relu, (X,), engine="reference", min_block_size=1)
    exporting, called = threading.Event(), threading.Event()

    def slow(x: torch.Tensor) -> torch.Tensor:
        exporting.set()
        called.wait(60)
        return x + 1

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        other = pool.submit(torchkiln.compile, slow, (X,), engine="reference", min_block_size=1)
        assert exporting.wait(60)
        try:
            assert torch.equal(compiled(X), X.relu())
        finally:
            called.set()
        assert torch.equal(other.result()(X), X + 1)
