"""``torch_executed_modules``: the modules that a user keeps in PyTorch."""

from __future__ import annotations

import difflib
import fnmatch
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch.fx

_PREFIX = re.compile(r"^L\['\w+'\]\.?|^L__self___?")
_SUBSCRIPT = re.compile(r"(?:\._modules)?\[(?:'([^']*)'|\"([^\"]*)\"|(\d+))\]")


def module_stack(node: torch.fx.Node) -> tuple[tuple[str, Any], ...]:
    """The modules that a call was traced in, outermost first: qualified name (``""`` for the root) and class or name of the class."""
    stack = node.meta.get("nn_module_stack") or {}
    entries = (value[:2] for key, value in stack.items() if not key.startswith("_empty_nn_module_stack"))
    return tuple((_plain_path(str(path)), kind) for path, kind in entries)


def find_executed(nodes: Sequence[torch.fx.Node], entries: Iterable[str | type]) -> dict[torch.fx.Node, str]:
    """The nodes inside of the modules that ``entries`` name, each with the name of the module that matched.

    Args:
        nodes: Calls of a program.
        entries: Qualified names, where ``*`` stands for any text, or classes. A module stands for all that it contains.
    """
    entries = tuple(entries)
    stacks = {node: module_stack(node) for node in nodes} if entries else {}
    chosen = {item for item in _modules_of(stacks.values()) if any(_matches(entry, item) for entry in entries)}
    found: dict[torch.fx.Node, str] = {}
    for node, stack in stacks.items():
        match = next((path for path, kind in stack if (path, kind) in chosen), None)
        if match is not None:
            found[node] = match or "the root module"
    return found


def require_matches(nodes: Iterable[torch.fx.Node], entries: Iterable[str | type]) -> None:
    """Checks that every entry names a module that a node comes from.

    Raises:
        ValueError: One does not.
    """
    modules = _modules_of(map(module_stack, nodes))
    for entry in entries:
        if not any(_matches(entry, item) for item in modules):
            raise ValueError(_no_match(entry, modules))


def _modules_of(stacks: Iterable[tuple[tuple[str, Any], ...]]) -> list[tuple[str, Any]]:
    return list(dict.fromkeys(item for stack in stacks for item in stack))


def _matches(entry: str | type, item: tuple[str, Any]) -> bool:
    path, kind = item
    if isinstance(entry, str):
        return fnmatch.fnmatchcase(path, entry)
    if isinstance(kind, type):
        return issubclass(kind, entry)
    if kind == _class_name(entry):
        return True
    # torch.export keeps classes as text; one that lives in an imported module can still be compared with its bases.
    place, _, name = str(kind).rpartition(".")
    found = getattr(sys.modules.get(place), name, None)
    return isinstance(found, type) and issubclass(found, entry)


def _no_match(entry: str | type, modules: Iterable[tuple[str, Any]]) -> str:
    names = [path if isinstance(entry, str) else _class_name(kind) for path, kind in modules]
    text = entry if isinstance(entry, str) else _class_name(entry)
    known = [name for name in dict.fromkeys(names) if name]
    close = difflib.get_close_matches(text, known, n=1)
    if close:
        hint = f"did you mean {close[0]!r}?"
    elif known:
        hint = f"modules with calls: {', '.join(known[:8])}{', ...' if len(known) > 8 else ''}"
    else:
        hint = "the program does not record which module a call comes from"
    return f"torch_executed_modules: no module that has a call matches {text!r}; {hint}"


def _class_name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else str(kind)


def _plain_path(path: str) -> str:
    """The qualified name of a module whose path may be in the notation of torch.compile, such as ``L['self'].layer1[0]``."""
    plain = _SUBSCRIPT.sub(lambda match: "." + next(group for group in match.groups() if group is not None), _PREFIX.sub("", path))
    return plain.removeprefix("_modules.").lstrip(".")
