"""Writes the page of operators from the registries of the installed packages: ``python tools/operators.py --page docs/operators.md``."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import torch

from torchkiln import ops

HEAD = """# Operators

What becomes of each operator, with torch {version}: {counts}. Written by `tools/operators.py`; `torchkiln ops` prints the same for what is
installed. Ranks are those of the first tensor argument; notes are the converter's further rules, who decomposes the operator, or why its
calls stay in PyTorch.
"""


def page() -> str:
    """The page for the installed torch."""
    operators = ops.table()
    counts = Counter(item.status for item in operators)
    shown = ", ".join(f"{count} {status}" for status, count in counts.items())
    return HEAD.format(version=torch.__version__.partition("+")[0], counts=shown) + "\n" + ops.to_markdown(operators) + "\n"


def main() -> int:
    """Writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, required=True)
    parser.parse_args().page.write_text(page())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
