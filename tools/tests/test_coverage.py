"""The table of what runs in engines."""

from __future__ import annotations

import pytest
from coverage import cover, page, summary
from coverage_models import MODELS


def test_a_model_is_counted() -> None:
    row = cover("unet")
    assert row["segments"] == ["engine"]
    assert (row["share_of_calls"], row["share_of_flops"], row["refusals"]) == (1.0, 1.0, {})
    assert row["calls"] > 20


def test_a_model_that_cannot_be_captured_is_a_row_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, kwargs = MODELS["unet"]()
    monkeypatch.setitem(MODELS, "unet", lambda: (model, (), kwargs))
    assert "error" in cover("unet")


def test_the_page_tells_wholes_parts_and_failures() -> None:
    whole = {"model": "a", "calls": 3, "segments": ["engine"], "share_of_calls": 1.0, "share_of_flops": 1.0, "refusals": {}}
    part = {**whole, "model": "b", "segments": ["engine", "torch"], "share_of_calls": 0.5, "refusals": {"aten.x [no-converter]": 2}}
    rows = [whole, part, {"model": "c", "error": "ExportError: no\nmore"}]
    assert summary(rows) == "3 models: 1 wholly in one engine, 2 with at least 95% of FLOPs in engines; failed: c"
    text = page(rows)
    assert "| b | 3 | 1 engine, 1 torch | 50.0% | 100.0% | `aten.x [no-converter]` x 2 |" in text
    assert "ExportError: no |" in text
