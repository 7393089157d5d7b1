"""Every Python block of every README and of the documentation runs as it stands."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
READMES = [ROOT / "README.md", *sorted(ROOT.glob("packages/*/README.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = [
    pytest.param(block, id=f"{readme.relative_to(ROOT)}-{index}")
    for readme in [*READMES, *sorted(ROOT.glob("docs/*.md"))]
    for index, block in enumerate(BLOCK.findall(readme.read_text()))
]


@pytest.mark.parametrize("readme", READMES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_readme_has_an_example(readme: Path) -> None:
    assert BLOCK.search(readme.read_text()), f"{readme}: expected a ```python block"


@pytest.mark.filterwarnings("default")  # readers see warnings, not errors
@pytest.mark.parametrize("block", EXAMPLES)
def test_an_example_runs(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "example.py"
    script.write_text(block)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="__main__")
