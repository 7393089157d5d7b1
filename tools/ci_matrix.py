# /// script
# requires-python = ">=3.11"
# dependencies = ["packaging>=24"]
# ///
"""Prints the CI matrix as one line of JSON: every package, on the oldest and newest Python, with the lowest and newest torch.

Usage::

    uv run tools/ci_matrix.py
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable

from workspace import Package, read_packages

MINORS = range(11, 30)
TORCH = ("lowest", "newest")


def pythons(package: Package) -> tuple[str, str]:
    """The oldest and the newest Python 3 that a package supports.

    Raises:
        ValueError: ``requires-python`` admits none.
    """
    supported = [f"3.{minor}" for minor in MINORS if package.python.contains(f"3.{minor}.0")]
    if not supported or len(supported) == len(MINORS):
        raise ValueError(f"{package.name}: expected requires-python with a lower and an upper bound, got {package.python}")
    return supported[0], supported[-1]


def matrix(packages: Iterable[Package]) -> dict[str, list[dict[str, str]]]:
    """The matrix in the form that GitHub's ``fromJSON`` takes."""
    rows = [
        {"package": package.name, "python": python, "torch": torch}
        for package in packages
        for python, torch in itertools.product(dict.fromkeys(pythons(package)), TORCH)
    ]
    return {"include": rows}


if __name__ == "__main__":
    print(json.dumps(matrix(read_packages().values())))
