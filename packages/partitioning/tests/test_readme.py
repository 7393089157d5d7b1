"""The example of the README runs and says what it claims."""

import re
from pathlib import Path


def test_readme_example(capsys):
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names = {"__name__": "readme"}
    exec(compile(example, "README.md", "exec"), names)  # noqa: S102 - the example is ours
    assert [segment.kind for segment in names["partition"].segments] == ["engine", "torch", "engine"]
    assert "engine_0 ('aten.add.Tensor', 'aten.mul.Tensor')" in capsys.readouterr().out
