"""The example packages do what their READMEs say: without a converter, with one by argument, with one by entry point."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "squared_relu"

SCRIPT = """
import sys, torch, torchkiln
from squared_relu import squared_relu

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.second(squared_relu(self.first(x)))

options = {"engine": "reference", "min_block_size": 1}
if sys.argv[1] == "argument":
    from squared_relu.converters import convert_squared_relu
    options["converters"] = [convert_squared_relu]
net, x = Net().eval(), torch.randn(5, 3)
for compiled in (torchkiln.compile(net, (x,), **options), torch.compile(net, backend="torchkiln", options=options)):
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x))
print(*(segment.kind for segment in torchkiln.compile(net, (x,), **options).report.segments))
"""


def run(folder: Path, way: str) -> str:
    """The kinds of segments that a process with the example package, and perhaps its entry points, makes."""
    path = [str(EXAMPLE / "src")]
    if way == "entry point":
        project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
        info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
        points = project["entry-points"]["torchkiln.converters"]
        (info / "entry_points.txt").write_text("[torchkiln.converters]\n" + "".join(f"{key} = {value}\n" for key, value in points.items()))
        path.append(str(folder))
    code = f"import sys; sys.path[:0] = {path!r}\n{SCRIPT}"
    return subprocess.run([sys.executable, "-c", code, way], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(
    ("way", "segments"), [("nothing", "engine torch engine"), ("argument", "engine"), ("entry point", "engine")], ids=lambda value: value
)
def test_a_custom_operator_and_its_converter(way: str, segments: str, tmp_path: Path) -> None:
    assert run(tmp_path, way) == segments
