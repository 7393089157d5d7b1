"""``torchkiln explain``: the report of a model on the command line."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

from torchkiln.explaining import explain
from torchkiln.report import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("model", nargs="?", help="module:function, where the function returns a model and a tuple of example arguments")
    source.add_argument("--demo", choices=("mixed",), help="a model that comes with torchkiln")
    parser.add_argument("--html", type=Path, help="write the report as a page that draws the graph")
    parser.add_argument("--dot", type=Path, help="write the segments as a Graphviz file")
    parser.add_argument("--json", type=Path, help="write the report as JSON")
    parser.add_argument("--min-block-size", type=int, default=5, help="as the option min_block_size of torchkiln.compile")
    parser.add_argument("--numbers", action="store_true", help="print the numbers behind each engine segment, as partition_report=print")


def run_explain(options: argparse.Namespace) -> int:
    """Prints the report, and writes it as asked."""
    try:
        model, args = _demo() if options.demo else _factory(options.model)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        sys.stderr.write(f"explain: {options.model}: {error}\n")
        return 2
    numbers = sys.stdout.write if options.numbers else None
    settings = {"min_block_size": options.min_block_size}
    if numbers is not None:
        settings["partition_report"] = lambda text: numbers(text + "\n\n")
    report = explain(model, args, **settings)
    sys.stdout.write(f"{report}\n")
    try:
        _write(report, options)
    except OSError as error:
        fix = "name a file in a folder that is there"
        sys.stderr.write(f"explain: {error.filename}: cannot be written: {error.strerror}\n  fix: {fix}\n")
        return 1
    return 0


def _write(report: Report, options: argparse.Namespace) -> None:
    if options.html is not None:
        report.to_html(options.html)
    for path, text in ((options.dot, report.to_dot), (options.json, report.to_json)):
        if path is not None:
            path.write_text(text(), encoding="utf-8")


def _demo() -> tuple[Any, tuple[Any, ...]]:
    from torchkiln.demo.mixed import mixed

    return mixed()


def _factory(name: str) -> tuple[Any, tuple[Any, ...]]:
    place, colon, function = name.partition(":")
    if not colon:
        raise ValueError("expected module:function, such as my_package.models:small")
    sys.path.insert(0, "")
    made = getattr(importlib.import_module(place), function)()
    if not isinstance(made, (tuple, list)) or len(made) != 2 or not isinstance(made[1], (tuple, list)):
        got = f"a tuple of {' and '.join(type(item).__name__ for item in made)}" if isinstance(made, tuple) else type(made).__name__
        raise TypeError(f"expected a function that returns a model and a tuple of example arguments, got {got}")
    return made[0], tuple(made[1])
