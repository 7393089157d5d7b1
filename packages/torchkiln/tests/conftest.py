"""What the tests of ``torch.compile`` share: no graphs of one another, and the backend with its reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import torchkiln


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """Dynamo without what earlier tests compiled and counted, and without this one's for later ones."""
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


@pytest.fixture
def reports() -> list[torchkiln.Report]:
    """The reports of the graphs that ``jit`` compiles, in order."""
    return []


@pytest.fixture
def jit(fresh_dynamo: None, reports: list[torchkiln.Report]) -> Callable[..., Any]:
    """``jit(model, options, ...)``: ``torch.compile`` with this backend, on the reference engine."""

    def compile_it(model: Any, options: dict[str, Any] | None = None, **keywords: Any) -> Any:
        settings = {"engine": "reference", "min_block_size": 1, "on_report": reports.append, **(options or {})}
        return torch.compile(model, backend="torchkiln", options=settings, **keywords)

    return compile_it
