"""The committed page of passes and decompositions is what the registries say."""

from __future__ import annotations

from pathlib import Path

from lowering_page import page

from torchkiln_lowering import standard_decompositions, standard_pipeline

TOOLS = Path(__file__).resolve().parent.parent


def test_the_page_is_current() -> None:
    assert (TOOLS.parent / "docs" / "lowering_passes.md").read_text() == page(), "run python tools/lowering_page.py"


def test_the_page_lists_everything() -> None:
    text = page()
    assert [item.name for item in standard_pipeline().passes if f"| {item.name} | " not in text] == []
    assert [str(target) for target in standard_decompositions().rules if f"| `{target}` | " not in text] == []
    assert all(item.purpose for item in standard_pipeline().passes)
