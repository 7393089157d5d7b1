"""The committed page of options is what their classes say, and names the targets that the library has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from options_page import TARGETS, page

from torchkiln_core import Options
from torchkiln_runtime import find_library

TOOLS = Path(__file__).resolve().parent.parent


def test_the_page_is_current() -> None:
    assert (TOOLS.parent / "docs" / "options.md").read_text() == page(), "run python tools/options_page.py"


def test_the_page_lists_every_option() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", page(), re.MULTILINE)
    assert rows == [item.name for item in Options.fields()]


def test_the_page_names_the_targets_of_the_library() -> None:
    pytest.importorskip("tensorrt_rtx")
    library = find_library("tensorrt_rtx")
    assert library is not None
    [row] = [line for line in TARGETS.splitlines() if '`"sm_75"`' in line]
    assert re.findall(r"sm_\d+", row) == list(library.named_targets())
