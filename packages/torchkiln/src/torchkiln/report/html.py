"""The report as one page for a browser."""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchkiln.report.model import Report

_PARTS = {"/*STYLE*/": "page.css", "/*SCRIPT*/": "page.js"}


def to_page(report: Report) -> str:
    """A page that holds its data, style and script itself."""
    folder = resources.files("torchkiln.report").joinpath("page")
    text = folder.joinpath("page.html").read_text(encoding="utf-8")
    for mark, name in _PARTS.items():
        text = text.replace(mark, folder.joinpath(name).read_text(encoding="utf-8"))
    # A closing tag inside of the data would end it; JSON may write "<" in another way.
    data = json.dumps(report.to_dict(), separators=(",", ":")).replace("<", "\\u003c")
    return text.replace("/*DATA*/", data)
