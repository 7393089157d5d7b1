"""Which tests run where: ``gpu`` tests need an NVIDIA GPU, ``slow`` tests need to be asked for. Every skip says its reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every", type=int, default=1, metavar="N", help="of all tests collected, run each Nth only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    every: int = config.getoption("every")
    config.hook.pytest_deselected(items=[item for place, item in enumerate(items) if place % every])
    items[:] = items[::every]
    has_gpu = torch.cuda.is_available()
    asked_for_slow = "slow" in str(config.getoption("markexpr"))
    for item in items:
        if item.get_closest_marker("gpu") and not has_gpu:
            item.add_marker(pytest.mark.skip(reason="gpu: torch sees no NVIDIA GPU on this machine"))
        if item.get_closest_marker("slow") and not asked_for_slow:
            item.add_marker(pytest.mark.skip(reason="slow: a full sweep, run it with `uv run pytest -m slow`"))


@pytest.fixture(autouse=True)
def _flags_of_backends_can_be_set() -> Iterator[None]:
    """Importing torch's own operator samples forbids the process to set flags; a test must not depend on whether another did so."""
    with torch.backends.__allow_nonbracketed_mutation():
        yield
