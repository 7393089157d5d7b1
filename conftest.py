"""Which tests run where: ``gpu`` tests need an NVIDIA GPU, ``slow`` tests need to be asked for. Every skip says its reason."""

from __future__ import annotations

import pytest
import torch


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    has_gpu = torch.cuda.is_available()
    asked_for_slow = "slow" in str(config.getoption("markexpr"))
    for item in items:
        if item.get_closest_marker("gpu") and not has_gpu:
            item.add_marker(pytest.mark.skip(reason="gpu: torch sees no NVIDIA GPU on this machine"))
        if item.get_closest_marker("slow") and not asked_for_slow:
            item.add_marker(pytest.mark.skip(reason="slow: a full sweep, run it with `uv run pytest -m slow`"))
