"""Writes the page that lists every lowering pass and every decomposition of torchkiln's own, read off the registries.

python tools/lowering_page.py [--out docs/lowering_passes.md]
"""

from __future__ import annotations

import argparse
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torchkiln_lowering import Decomposition, Pass, standard_decompositions, standard_pipeline
from torchkiln_lowering.passes.autocast import cast_products
from torchkiln_lowering.passes.truncate import truncate_double

OUT = Path(__file__).resolve().parent.parent / "docs" / "lowering_passes.md"
HEAD = """# Lowering passes and decompositions

Written by `tools/lowering_page.py`; [Writing a lowering pass](lowering.md) says how to add to both lists.

## Passes

In the order in which they run, after the calls that no converter takes have been decomposed. What passes write is decomposed again.

| pass | for | needs before it |
|---|---|---|
"""
BY_OPTION = """
By option, before anything else:

| pass | option | for |
|---|---|---|
"""
DECOMPOSITIONS = """
## Decompositions

Torchkiln's own. For every other operator those that PyTorch ships are taken (`torch._decomp` and the kernels of composite operators). A
decomposition is used only where no converter takes the call, and only if more of its calls run in engines than stay in PyTorch. A call that
does not meet what it requires is reported with that.

"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, *map(_pass_row, standard_pipeline().passes), BY_OPTION]
    parts.append(f"| truncate_double | `truncate_double=True` | {_summary(truncate_double)} |\n")
    parts.append(f"| autocast | `autocast=torch.float16` | {_summary(cast_products)} |\n")
    parts.append(DECOMPOSITIONS)
    for family, rows in sorted(_families().items()):
        parts.append(f"### {family.replace('_', ' ').capitalize()}\n\n| operator | becomes | requires |\n|---|---|---|\n")
        parts += [f"| `{target}` | {text} | {limits} |\n" for target, text, limits in sorted(rows)]
        parts.append("\n")
    return "".join(parts).rstrip() + "\n"


def _pass_row(item: Pass) -> str:
    return f"| {item.name} | {_escaped(item.purpose)} | {', '.join(item.after) or '-'} |\n"


def _families() -> dict[str, list[tuple[str, str, str]]]:
    families: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    for target, rule in standard_decompositions().rules.items():
        becomes = _summary(rule.function) if _is_ours(rule) else f"`{rule.function}`"
        limits = _escaped("; ".join(limit.text for limit in rule.limits)) or "-"
        families[_family(target, rule)].append((str(target), becomes, limits))
    return families


def _family(target: Callable[..., Any], rule: Decomposition) -> str:
    if str(target).startswith("prims."):
        return "prims"
    return str(rule.function.__module__).rpartition(".")[2] if _is_ours(rule) else "aliases"


def _is_ours(rule: Decomposition) -> bool:
    return str(getattr(rule.function, "__module__", "")).startswith("torchkiln_lowering")


def _summary(function: Callable[..., Any]) -> str:
    lines: Iterable[str] = (inspect.getdoc(function) or "").splitlines()
    return _escaped(next(iter(lines), "")) or "calls of other operators"


def _escaped(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")


def main() -> int:
    """Writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.parse_args().out.write_text(page())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
