"""The committed page of passes and decompositions is what the registries say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from torchkiln_lowering import standard_decompositions, standard_pipeline

TOOLS = Path(__file__).resolve().parent.parent


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lowering_page", TOOLS / "lowering_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current() -> None:
    assert (TOOLS.parent / "docs" / "lowering_passes.md").read_text() == _tool().page(), "run python tools/lowering_page.py"


def test_the_page_lists_everything() -> None:
    text = _tool().page()
    assert [item.name for item in standard_pipeline().passes if f"| {item.name} | " not in text] == []
    assert [str(target) for target in standard_decompositions().rules if f"| `{target}` | " not in text] == []
    assert all(item.purpose for item in standard_pipeline().passes)
