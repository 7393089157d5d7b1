"""Eager as the truth: what PyTorch does on a GPU by default is not always what it promises."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from torchkiln_testing import eager_truth


@pytest.fixture(autouse=True)
def _eager_truth() -> Iterator[None]:
    with eager_truth():
        yield
