"""Writes the page that lists every option and the targets of plans, read off the classes of ``torchkiln_core.options``.

python tools/options_page.py [--out docs/options.md]
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from torchkiln_core import Options

OUT = Path(__file__).resolve().parent.parent / "docs" / "options.md"
HEAD = """# Options

Written by `tools/options_page.py`. Options are keywords of `torchkiln.compile` and `torchkiln.explain`, and the entries of `options={...}`
of `torch.compile`; an unknown one is an error with a suggestion. Where an option is `None` by default, its text says what holds then.

"""
TARGETS = """## Targets

`targets=` says which GPUs a plan is for, by compute capability:

| target | is | built |
|---|---|---|
| `"current"` | the GPU that torch uses when the program is compiled; the plan runs on such GPUs only | where that GPU is |
| `"sm_75"`, `"sm_80"`, `"sm_86"`, `"sm_89"`, `"sm_120"`, `"sm_121"` | what TensorRT-RTX 1.7 names | on any machine, without a GPU too |

- `targets=["sm_86", "sm_89"]` makes one plan for both. Without `targets=`, a plan is for `"current"` where there is a GPU, and none is
  built where there is none.
- A GPU whose compute capability TensorRT-RTX does not name, such as `sm_90` (H100, H200), has no plan ahead of time: compile where it is,
  without `targets=` or with `targets=["current"]`. The name of the GPU at hand, there `"sm_90"`, means `"current"` as well.
- TensorRT for data-centre GPUs names none; it builds for `"current"` only.
- `torchkiln.load` builds a plan anew where the one in the file is for another GPU, or for another version of the library
  (`rebuild="auto"`).
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for stage in dataclasses.fields(Options):
        options: Any = stage.default
        summary = (inspect.getdoc(type(options)) or "").partition("\n")[0]
        parts.append(f"## {stage.name.capitalize()}\n\n{summary}\n\n| option | takes | default | does |\n|---|---|---|---|\n")
        hints = typing.get_type_hints(type(options))
        parts += [_row(item, hints[item.name]) for item in dataclasses.fields(options)]
        parts.append("\n")
    return "".join([*parts, TARGETS])


def _row(item: dataclasses.Field[Any], hint: Any) -> str:
    default = "empty" if item.default == () else f"`{_literal(item.default)}`"
    return f"| `{item.name}` | {_takes(hint)} | {default} | {item.metadata['doc'].replace('|', chr(92) + '|')} |\n"


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _takes(hint: Any) -> str:
    """A type in words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_takes(arm) for arm in arguments)
    if origin is Literal:
        return ", ".join(f"`{_literal(value)}`" for value in arguments)
    if origin is tuple and typing.get_origin(arguments[0]) is tuple and Ellipsis not in (pair := typing.get_args(arguments[0])):
        return f"mapping of {_takes(pair[0])} to {_takes(pair[1])}"
    if origin is tuple:
        return "tuple" if arguments[0] is Any else f"list of {_takes(arguments[0])}"
    if origin is Callable:
        return "function"
    if hint is type(None):
        return "`None`"
    if hint is type:
        return "class"
    return f"`{hint.__name__}`" if hint.__module__ == "builtins" else f"`{hint.__module__.partition('_core')[0]}.{hint.__name__}`"


def main() -> int:
    """Writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.parse_args().out.write_text(page())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
