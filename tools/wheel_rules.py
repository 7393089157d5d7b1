"""What a built wheel must hold, and how a package must bound the others."""

from __future__ import annotations

import email
import zipfile
from collections.abc import Iterator, Mapping
from email.message import Message
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from workspace import ROOT, Package


def wheel_problems(package: Package, wheel: Path) -> list[str]:
    """What is wrong with the files and metadata of a wheel, in words; empty when nothing is."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        info = f"{package.import_name}-{package.version}.dist-info"
        metadata = email.message_from_bytes(archive.read(f"{info}/METADATA"))
        license_name = f"{info}/licenses/LICENSE"
        license_text = archive.read(license_name) if license_name in names else None
    return [
        *_file_problems(package, names, info),
        *_metadata_problems(package, metadata),
        *([] if license_text == (ROOT / "LICENSE").read_bytes() else [f"{license_name}: expected the text of the root LICENSE"]),
    ]


def bound_problems(package: Package, built: Mapping[str, Package]) -> list[str]:
    """Dependencies on members that are not bound as ``>=0.N,<0.N+1`` around the version at hand; empty when all are."""
    problems = []
    for requirement in package.siblings(built):
        version = built[requirement.name].version
        expected = SpecifierSet(f">={version.major}.{version.minor},<{_after(version)}")
        if not requirement.specifier.contains(version, prereleases=True):
            problems.append(f"{requirement}: the workspace holds {version}, which this bound refuses")
        elif requirement.specifier != expected:
            problems.append(f"{requirement}: expected {requirement.name}{expected}")
    return problems


def _after(version: Version) -> str:
    return f"0.{version.minor + 1}" if version.major == 0 else f"{version.major + 1}"


def _file_problems(package: Package, names: set[str], info: str) -> Iterator[str]:
    source = package.folder / "src"
    expected = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    if f"{package.import_name}/py.typed" not in names:
        yield "py.typed: expected in the wheel, so that type checkers read it"
    for name in sorted(expected - names):
        yield f"{name}: in the source tree, missing from the wheel"
    for name in sorted(names):
        if not name.startswith((f"{package.import_name}/", f"{info}/")):
            yield f"{name}: in the wheel, belongs to no package"


def _metadata_problems(package: Package, metadata: Message) -> Iterator[str]:
    if metadata["Version"] != str(package.version):
        yield f"Version: expected {package.version}, got {metadata['Version']}"
    if metadata["License-Expression"] != "Apache-2.0":
        yield f"License-Expression: expected Apache-2.0, got {metadata['License-Expression']}"
    declared = {str(Requirement(text)) for text in metadata.get_all("Requires-Dist", []) if "extra ==" not in text}
    if declared != {str(item) for item in package.requires}:
        yield f"Requires-Dist: expected {sorted(map(str, package.requires))}, got {sorted(declared)}"
    if not (package.folder / "CHANGELOG.md").is_file():
        yield "CHANGELOG.md: missing from the package's folder"
    if len(str(metadata.get_payload()).strip().splitlines()) < 5:
        yield "README.md: expected a description of the package, got a stub"
