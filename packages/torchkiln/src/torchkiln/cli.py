"""The command ``torchkiln``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from torchkiln import ops
from torchkiln.doctor import diagnose
from torchkiln.explain_command import add_arguments, run_explain
from torchkiln_core import KilnError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; the exit status is 0 when it did what was asked."""
    parser = argparse.ArgumentParser(prog="torchkiln", description="Compiles PyTorch programs into NVIDIA TensorRT engines.")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser(
        "demo", help="train a small net on handwritten digits, compile it and a resnet18, and compare both with eager"
    )
    demo.add_argument("--seed", type=int, default=0, help="seed of the training and of random weights")
    commands.add_parser("doctor", help="say which TensorRT library, GPU and torch are found, and what torchkiln will do with them")
    add_arguments(
        commands.add_parser("explain", help="say how a model is divided and why calls stay in PyTorch, without building anything")
    )
    operators = commands.add_parser("ops", help="list operators: converted, decomposed or refused, with dtypes, ranks and rules")
    operators.add_argument("--json", action="store_true", help="as a JSON list")
    options = parser.parse_args(arguments)
    try:
        match options.command:
            case "ops":
                sys.stdout.write((ops.to_json if options.json else ops.to_text)(ops.table()) + "\n")
                return 0
            case "doctor":
                sys.stdout.write("\n".join(diagnose()) + "\n")
                return 0
            case "explain":
                return run_explain(options)
            case _:
                return _demo(options.seed)
    except KilnError as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _demo(seed: int) -> int:
    try:
        import rich  # noqa: F401
        import sklearn  # noqa: F401
        import torchvision  # noqa: F401
    except ImportError as error:
        sys.stderr.write(f"the demo needs {error.name}: install torchkiln[demo]\n")
        return 1
    from torchkiln.demo.show import run_demo

    return run_demo(seed)


if __name__ == "__main__":
    raise SystemExit(main())
