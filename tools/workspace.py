"""The packages of this workspace, as their ``pyproject.toml`` files declare them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Package:
    """A member of the workspace.

    Attributes:
        name: Distribution name, such as ``torchkiln-core``.
        folder: Its folder in the repository.
        version: Version that its wheel will have.
        python: Python versions that it supports.
        requires: Dependencies of every install; extras are left out.
        test_requires: What its tests need besides (dependency group ``dev``).
    """

    name: str
    folder: Path
    version: Version
    python: SpecifierSet
    requires: tuple[Requirement, ...]
    test_requires: tuple[Requirement, ...]

    @property
    def import_name(self) -> str:
        """Name under which Python imports it."""
        return self.name.replace("-", "_")

    def siblings(self, members: Mapping[str, Package]) -> tuple[Requirement, ...]:
        """Its dependencies on other members, tests aside."""
        return tuple(item for item in self.requires if item.name in members)


def read_packages(root: Path = ROOT) -> dict[str, Package]:
    """Every package below ``packages/``, by name.

    Raises:
        FileNotFoundError: There is no package.
    """
    found = [_read(path) for path in sorted((root / "packages").glob("*/pyproject.toml"))]
    if not found:
        raise FileNotFoundError(f"{root / 'packages'}: expected folders with a pyproject.toml, found none")
    return {package.name: package for package in found}


def closure(package: Package, members: Mapping[str, Package]) -> tuple[Package, ...]:
    """``package`` and the members that an install of it brings, declared dependencies of dependencies included."""
    seen: dict[str, Package] = {}
    waiting = [package.name]
    while waiting:
        name = waiting.pop(0)
        if name not in seen:
            seen[name] = members[name]
            waiting += [item.name for item in members[name].siblings(members)]
    return tuple(seen.values())


def _read(path: Path) -> Package:
    content = tomllib.loads(path.read_text())
    project = content["project"]
    groups = content.get("dependency-groups", {})
    return Package(
        name=project["name"],
        folder=path.parent,
        version=Version(project["version"]),
        python=SpecifierSet(project["requires-python"]),
        requires=tuple(_requirement(text) for text in project["dependencies"]),
        test_requires=tuple(_requirement(text) for text in groups.get("dev", ())),
    )


def _requirement(text: str) -> Requirement:
    requirement = Requirement(text)
    requirement.name = canonicalize_name(requirement.name)
    return requirement
