"""The documentation names what exists, and its links lead somewhere."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import operators
import pytest
import torch

from torchkiln import Input, backends
from torchkiln.modes import MODES
from torchkiln_core import Options, errors
from torchkiln_core.rejection import Rejection

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("packages/*/*.md"))]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def subclasses(error: type[Exception]) -> set[str]:
    return {error.__name__}.union(*(subclasses(child) for child in error.__subclasses__()))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    missing = [link for link in links if not (page.parent / link).exists()]
    assert missing == []


def test_the_page_of_errors_draws_the_whole_tree() -> None:
    drawn = set(re.findall(r"^[│├└─\s]*([A-Z]\w+)", (ROOT / "docs/errors.md").read_text().split("```")[1], re.MULTILINE))
    assert drawn == subclasses(errors.KilnError)


def test_the_page_of_errors_lists_every_rule() -> None:
    assert Rejection.__doc__ is not None
    rules = set(re.findall(r"``([a-z-]+)``", Rejection.__doc__.split("Rules:")[1]))
    assert len(rules) > 10
    listed = set(re.findall(r"`([a-z-]+)`", (ROOT / "docs/errors.md").read_text()))
    assert rules <= listed


def test_the_page_of_torch_compile_has_every_mode() -> None:
    rows = dict(re.findall(r'^\| `"([a-z-]+)"` \| (.*) \|$', (ROOT / "docs/torch_compile.md").read_text(), re.MULTILINE))
    assert list(rows) == list(MODES)
    for mode, options in MODES.items():
        listed = re.findall(r"`(\w+)=([^`]+)`", rows[mode])
        assert {name: ast.literal_eval(value) for name, value in listed} == dict(options)


def test_the_page_of_switches_has_every_switch() -> None:
    text = (ROOT / "docs/backends.md").read_text()
    functions = {name for name, value in vars(backends.m).items() if callable(value) and value.__module__ == backends.__name__}
    public = {name for name in functions if not name[0].isupper() and name[0] != "_"} - {"resolve"}
    assert {"is_built", "is_available", "version", "flags", "preferred_engine_library"} == public
    flags = set(inspect.signature(backends.flags).parameters)
    assert flags == {"enabled", "allow_tf32", "deterministic", "benchmark"}
    rows = set(re.findall(r"^\| `(\w+)", text, re.MULTILINE))
    assert public | flags | {"plan_cache"} <= rows


def test_the_migration_table_names_options_that_exist() -> None:
    rows = [line.split("|")[2] for line in (ROOT / "docs/migrating.md").read_text().splitlines() if line.startswith("| ")][1:]
    known = {item.name for item in Options.fields()} | {
        *inspect.signature(Input.__init__).parameters,
        "backend",
        "options",
        "dynamic_shapes",
    }
    named = {name for row in rows for name in re.findall(r"\b([a-z]\w*)=", row)}
    assert len(named) > 8
    assert named <= known


def test_the_page_of_operators_is_what_its_tool_writes() -> None:
    text = (ROOT / "docs/operators.md").read_text()
    version = torch.__version__.partition("+")[0]
    if f"with torch {version}:" not in text:
        pytest.skip(f"docs/operators.md: written with another torch than {version}")
    assert text == operators.page(), "run: uv run python tools/operators.py --page docs/operators.md"
