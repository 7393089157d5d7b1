"""Rounds of drawn programs, one seed each: what the fuzzers have in common.

A round ends at the first program that fails, which hypothesis shrinks; with ``--sweep`` it goes on. What a program became:

- ``engine``: equal to eager, and every call ran in an engine
- ``refused``: equal, with calls in PyTorch for reasons that rules name
- ``not captured``: torch itself cannot trace or export it
- ``unbuilt``: a segment could not be converted or built, which no rule had said before
- ``different``, ``crashed``: a result that is not eager's, an error that eager does not raise
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from torchkiln import Report

P = TypeVar("P")

DRAWN = settings(
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink),
    report_multiple_bugs=False,
)
"""One seed draws the same programs in every run; any time that a program takes is right."""


class Unbuilt(AssertionError):
    """A segment runs in PyTorch because its conversion or its build failed."""


@dataclass(slots=True)
class Round:
    """What became of the programs of one seed; ``failures`` are those that failed, each with its error."""

    seed: int
    outcomes: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)

    def add(self, reports: Sequence[Report] | None) -> None:
        """Counts a program that equals eager.

        Raises:
            Unbuilt: A segment of it could not be built.
        """
        if reports is None:
            self.outcomes["not captured"] += 1
            return
        rejections = [item for report in reports for item in report.rejections]
        unbuilt = [str(item) for item in rejections if item.rule == "build-failed"]
        if unbuilt:
            raise Unbuilt("\n".join(unbuilt))
        kinds: Counter[str] = Counter()
        for segment in (segment for report in reports for segment in report.segments):
            kinds[segment.kind] += len(segment.calls)
        self.calls += kinds
        self.rules.update({f"{item.target} [{item.rule}]" for item in rejections})
        self.outcomes["refused" if kinds["torch"] else "engine"] += 1

    def fail(self, error: Exception) -> None:
        """Counts and keeps the program that failed."""
        kind = "unbuilt" if isinstance(error, Unbuilt) else "different" if isinstance(error, AssertionError) else "crashed"
        self.outcomes[kind] += 1
        self.failures.append("\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]))

    def as_json(self) -> dict[str, Any]:
        """The fields by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.most_common())
        lines = [
            f"seed {self.seed}: {counts}; {self.calls['engine']} calls in engines, {self.calls['torch']} in PyTorch; {self.seconds:.0f} s"
        ]
        if self.rules:
            lines.append("  " + ", ".join(f"{rule} in {count}" for rule, count in self.rules.most_common(12)))
        return "\n".join([*lines, *self.failures])


Check = Callable[[P], Sequence[Report] | None]
"""Raises unless a program equals eager; the reports of its graphs, or ``None`` where torch cannot capture it."""


def until_failure(programs: SearchStrategy[P], check: Check[P], chosen_seed: int, count: int) -> Round:
    """Draws ``count`` programs, or as many as there are before one fails, which is shrunk."""
    result = Round(chosen_seed)
    shrinks = False

    def visit(program: P) -> None:
        nonlocal shrinks
        try:
            (Round(chosen_seed) if shrinks else result).add(check(program))
        except Exception:
            shrinks = True
            raise

    try:
        _draw(programs, visit, chosen_seed, count)
    except Exception as error:  # noqa: BLE001 - to find whatever is raised is the purpose
        result.fail(error)
    return result


def sweep(programs: SearchStrategy[P], check: Check[P], chosen_seed: int, count: int) -> Round:
    """Draws ``count`` programs and keeps every one that fails as it was drawn."""
    result = Round(chosen_seed)

    def visit(program: P) -> None:
        try:
            result.add(check(program))
        except Exception as error:  # noqa: BLE001 - to find whatever is raised is the purpose
            error.add_note(repr(program))
            result.fail(error)

    _draw(programs, visit, chosen_seed, count)
    return result


def _draw(programs: SearchStrategy[P], visit: Callable[[P], None], chosen_seed: int, count: int) -> None:
    @seed(chosen_seed)
    @settings(DRAWN, max_examples=count)
    @given(programs)
    def run(program: P) -> None:
        visit(program)

    run()


def arguments_of(description: str | None) -> argparse.ArgumentParser:
    """A parser of what every fuzzer is told."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=200, help="of each round")
    parser.add_argument("--seed", type=int, default=0, help="of the first round; that of each other is one more")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--sweep", action="store_true", help="go on behind a program that fails, and shrink none")
    parser.add_argument("--build", action="store_true", help="build plans too, for sm_89; needs no GPU")
    parser.add_argument("--json", type=Path, help="where the counts go, after every round")
    return parser


def options_of(chosen: argparse.Namespace, engine: str = "reference") -> dict[str, Any]:
    """The options that programs are compiled with."""
    return {"engine": engine, "min_block_size": 1, **({"targets": ["sm_89"]} if chosen.build else {})}


def run_rounds(programs: SearchStrategy[P], check: Check[P], chosen: argparse.Namespace) -> int:
    """Runs and prints the rounds; exit status 1 when a program failed."""
    rounds = []
    for number in range(chosen.rounds):
        start = time.perf_counter()
        result = (sweep if chosen.sweep else until_failure)(programs, check, chosen.seed + number, chosen.programs)
        result.seconds = time.perf_counter() - start
        rounds.append(result)
        print(result, flush=True)
        if chosen.json is not None:
            chosen.json.write_text(json.dumps([item.as_json() for item in rounds], indent=1))
    total = sum((item.outcomes for item in rounds), Counter[str]())
    print(f"{total.total()} programs: " + ", ".join(f"{count} {outcome}" for outcome, count in total.most_common()))
    return int(any(item.failures for item in rounds))
