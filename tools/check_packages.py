# /// script
# requires-python = ">=3.11"
# dependencies = ["mypy>=1.15", "packaging>=24"]
# ///
"""Checks that each package stands alone: builds it, installs its wheel with what it declares and nothing else, and tests that.

Usage::

    uv run tools/check_packages.py                                    every package, every check
    uv run tools/check_packages.py --package torchkiln-core           one package
    uv run tools/check_packages.py --python 3.13 --lowest             on another Python, with the lowest versions that it declares
    uv run tools/check_packages.py --skip types --jobs 2              without the named checks, two packages at a time
    uv run tools/check_packages.py --every 5                          each fifth test only
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from wheel_rules import bound_problems, wheel_problems
from workspace import ROOT, Package, closure, read_packages

IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
names = [item.name for item in pkgutil.walk_packages(package.__path__, package.__name__ + ".") if not item.name.endswith("__main__")]
for name in names:
    importlib.import_module(name)
print(f"{len(names) + 1} modules")
"""


class CheckFailed(Exception):
    """A check of a package failed; the message is what to show."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What every check shares: the members, their wheels, the scratch folder, how to resolve, and that each ``every``-th test runs."""

    members: Mapping[str, Package]
    wheels: Mapping[str, Path]
    scratch: Path
    python: str
    resolution: str
    every: int

    def environment(self, package: Package) -> Path:
        """Folder of the package's virtual environment."""
        return self.scratch / package.import_name / "venv"

    def interpreter(self, package: Package) -> str:
        """The environment's Python."""
        return str(self.environment(package) / "bin" / "python")


def check_wheel(package: Package, settings: Settings) -> str:
    """The wheel holds every module, ``py.typed``, the licence and true metadata."""
    _refuse(wheel_problems(package, settings.wheels[package.name]))
    return "ok"


def check_bounds(package: Package, settings: Settings) -> str:
    """Members are bound around the versions built, which the installer of a workspace does not enforce."""
    _refuse(bound_problems(package, settings.members))
    return "ok"


def check_install(package: Package, settings: Settings) -> str:
    """A new environment takes the wheel, the wheels of the members that it declares, and what its tests need."""
    environment = settings.environment(package)
    _call("uv", "venv", "--quiet", "--python", settings.python, str(environment))
    given = (*package.requires, *package.test_requires)
    extras = {name: ",".join(sorted({extra for item in given if item.name == name for extra in item.extras})) for name in settings.members}
    for_tests = [settings.members[item.name] for item in package.test_requires if item.name in settings.members]
    members = {member.name: member for root in (package, *for_tests) for member in closure(root, settings.members)}
    wheels = [f"{name}[{extras[name]}] @ {settings.wheels[name].as_uri()}" for name in members]
    others = [str(item) for item in given if item.name not in settings.members]
    install = ("uv", "pip", "install", "--quiet", "--python", settings.interpreter(package), "--resolution", settings.resolution)
    _call(*install, *wheels, *others)
    _call("uv", "pip", "check", "--quiet", "--python", settings.interpreter(package))
    torch = "from importlib.metadata import version; print('torch', version('torch'))"
    return _call(settings.interpreter(package), "-c", torch).strip()


def check_imports(package: Package, settings: Settings) -> str:
    """Every module of the installed package imports."""
    return _call(settings.interpreter(package), "-c", IMPORT_ALL, package.import_name, cwd=settings.scratch).strip()


def check_types(package: Package, settings: Settings) -> str:
    """The installed package passes ``mypy --strict`` as its users see it, without members that it does not declare."""
    _call(
        *(sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml")),
        *("--cache-dir", str(settings.scratch / package.import_name / "mypy"), "--python-executable", settings.interpreter(package)),
        *("--package", package.import_name),
        cwd=settings.scratch,
    )
    return "ok"


def check_tests(package: Package, settings: Settings) -> str:
    """Its tests pass against the installed wheel; the source tree is out of reach."""
    copy = settings.scratch / package.import_name / "tree"
    tests = copy / "packages" / package.folder.name / "tests"
    if not (package.folder / "tests").is_dir():
        raise CheckFailed(f"{package.folder / 'tests'}: expected a folder of tests, found none")
    shutil.copytree(package.folder / "tests", tests, ignore=shutil.ignore_patterns("__pycache__"))
    for shared in ("pyproject.toml", "conftest.py"):
        shutil.copy(ROOT / shared, copy / shared)
    output = _call(
        settings.interpreter(package), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--every={settings.every}", str(tests), cwd=copy
    )
    return output.strip().splitlines()[-1].strip("= ")


CHECKS: dict[str, Callable[[Package, Settings], str]] = {
    "wheel": check_wheel,
    "bounds": check_bounds,
    "install": check_install,
    "imports": check_imports,
    "types": check_types,
    "tests": check_tests,
}


def build(members: Mapping[str, Package], out: Path) -> dict[str, Path]:
    """Builds the source archive of each member and its wheel from that archive.

    Raises:
        CheckFailed: A build failed.
    """
    wheels = {}
    for package in members.values():
        _call("uv", "build", "--quiet", "--package", package.name, "--out-dir", str(out), cwd=ROOT)
        wheels[package.name] = next(out.glob(f"{package.import_name}-{package.version}-*.whl"))
    return wheels


def check(package: Package, settings: Settings, skipped: frozenset[str]) -> dict[str, str]:
    """Runs the checks of one package in order; what they found by name. Without an install, the checks after it cannot run."""
    found: dict[str, str] = {}
    started = time.perf_counter()
    for name, run in CHECKS.items():
        if name in skipped:
            found[name] = "skipped"
        elif found.get("install") == "FAILED":
            found[name] = "not run"
        else:
            try:
                found[name] = run(package, settings)
            except CheckFailed as failure:
                print(f"--- {package.name}: {name} failed\n{failure}", flush=True)
                found[name] = "FAILED"
    shutil.rmtree(settings.scratch / package.import_name, ignore_errors=True)
    print(f"{package.name}: {time.perf_counter() - started:.0f} s", flush=True)
    return found


def table(rows: Mapping[str, Mapping[str, str]]) -> str:
    """The result of every check as aligned columns."""
    lines = [("package", *CHECKS), *((name, *found.values()) for name, found in rows.items())]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines)


def arguments(members: Mapping[str, Package]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="Checks that each package stands alone.")
    parser.add_argument("--package", action="append", choices=sorted(members), help="check this package only (may be given again)")
    parser.add_argument("--python", default=f"{sys.version_info.major}.{sys.version_info.minor}", help="Python of the environments")
    parser.add_argument("--jobs", type=int, default=1, help="packages at a time")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="run each Nth test only; all are imported and collected")
    parser.add_argument("--lowest", action="store_true", help="install the lowest versions that the package declares")
    parser.add_argument("--skip", action="append", default=[], choices=["types", "tests"], help="leave this check out (may be given again)")
    return parser.parse_args()


def main() -> int:
    """Checks the packages asked for; 1 when one failed."""
    members = read_packages()
    options = arguments(members)
    selected = [members[name] for name in options.package or members]
    with tempfile.TemporaryDirectory(prefix="torchkiln-check-") as folder:
        scratch = Path(folder)
        try:
            wheels = build(members, scratch / "dist")
        except CheckFailed as failure:
            print(failure)
            return 1
        resolution = "lowest-direct" if options.lowest else "highest"
        settings = Settings(members, wheels, scratch, options.python, resolution, options.every)
        # Those that build on the most others take longest, so they come first where several run at a time.
        selected.sort(key=lambda package: -len(closure(package, members)))
        with ThreadPoolExecutor(options.jobs) as pool:
            rows = dict(pool.map(lambda package: (package.name, check(package, settings, frozenset(options.skip))), selected))
    print(f"\nPython {options.python}, {resolution} versions\n{table(rows)}")
    failed = [name for name, found in rows.items() if "FAILED" in found.values()]
    print(f"failed: {', '.join(failed)}" if failed else f"{len(rows)} packages stand alone")
    return 1 if failed else 0


def _refuse(problems: list[str]) -> None:
    if problems:
        raise CheckFailed("\n".join(problems))


def _call(*command: str, cwd: Path | None = None) -> str:
    """Standard output of a command, run without the workspace's environment."""
    clean = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH", "MYPYPATH", "PYTEST_ADDOPTS")}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CheckFailed(f"$ {' '.join(command)}\nexit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
