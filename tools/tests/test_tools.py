"""The tools read the workspace rightly and refuse what they must."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import ci_matrix
import pytest
import wheel_rules
import workspace
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

TOOLS = Path(__file__).resolve().parent.parent


MEMBERS = workspace.read_packages()
STAGES = ("torchkiln-converters", "torchkiln-lowering", "torchkiln-partitioning", "torchkiln-runtime")


def test_matrix_names_every_package_with_both_ends_of_python_and_torch() -> None:
    done = subprocess.run([sys.executable, str(TOOLS / "ci_matrix.py")], capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout)["include"]
    expected = {(name, python, torch) for name in MEMBERS for python in ("3.11", "3.13") for torch in ("lowest", "newest")}
    assert {(row["package"], row["python"], row["torch"]) for row in rows} == expected
    assert len(rows) == len(expected)


def test_matrix_refuses_a_python_range_without_an_end() -> None:
    package = replace(MEMBERS["torchkiln-core"], python=SpecifierSet(">=3.11"))
    with pytest.raises(ValueError, match="upper bound"):
        ci_matrix.pythons(package)


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_brings_core_and_no_other_member(stage: str) -> None:
    assert {member.name for member in workspace.closure(MEMBERS[stage], MEMBERS)} == {stage, "torchkiln-core"}


def test_the_frontend_brings_every_stage_and_no_development_kit() -> None:
    assert {member.name for member in workspace.closure(MEMBERS["torchkiln"], MEMBERS)} == set(MEMBERS) - {"torchkiln-testing"}


@pytest.mark.parametrize("name", sorted(MEMBERS))
def test_members_are_bound_around_their_versions(name: str) -> None:
    assert wheel_rules.bound_problems(MEMBERS[name], MEMBERS) == []


@pytest.mark.parametrize("bound", [">=0.2,<0.3", ">=0.1", ">=0.1,<0.9", "==0.1.0", ""])
def test_other_bounds_are_refused(bound: str) -> None:
    package = replace(MEMBERS["torchkiln-lowering"], requires=(Requirement(f"torchkiln-core{bound}"),))
    assert len(wheel_rules.bound_problems(package, MEMBERS)) == 1


def test_a_wheel_without_its_files_is_refused(tmp_path: Path) -> None:
    package = MEMBERS["torchkiln-core"]
    wheel = tmp_path / "torchkiln_core-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"torchkiln_core-{package.version}.dist-info/METADATA", "Version: 9\nLicense-Expression: MIT\n\n# core\n")
        archive.writestr("tests/test_stray.py", "")
    problems = "\n".join(wheel_rules.wheel_problems(package, wheel))
    for expected in (
        "py.typed",
        "torchkiln_core/errors.py",
        "tests/test_stray.py",
        "Version",
        "License-Expression",
        "Requires-Dist",
        "README",
        "LICENSE",
    ):
        assert expected in problems


def test_every_package_ships_the_licence_of_the_root() -> None:
    text = (workspace.ROOT / "LICENSE").read_bytes()
    assert all((package.folder / "LICENSE").read_bytes() == text for package in MEMBERS.values())
