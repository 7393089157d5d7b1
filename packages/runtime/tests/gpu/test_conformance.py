"""The reference against TensorRT on this GPU, in one process: some rows of every layer, and all rows where slow tests are asked for.

``python tools/conformance.py`` runs all rows in several processes and writes the table.
"""

from __future__ import annotations

import fnmatch

import pytest
import torch

from torchkiln_runtime import find_library, gpu_support
from torchkiln_runtime.conformance import KNOWN, Outcome, all_groups, all_rows, check_group, sample_groups

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda", 0)
ROWS_OF_A_SAMPLE = 8


@pytest.fixture(scope="module", autouse=True)
def supported():
    reason = gpu_support(find_library(), CUDA)
    if reason is not None:
        pytest.skip(f"engine: {reason}")


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return []


def check(group) -> list[Outcome]:
    found = list(check_group(group, CUDA))
    assert [outcome.name for outcome in found] == [row.name for row in group.rows]
    undocumented = [outcome for outcome in found if not outcome.is_green and outcome.known is None]
    shown = "\n".join(f"{outcome.name} {outcome.shapes}: {outcome.status}: {outcome.detail[:300]}" for outcome in undocumented)
    assert not undocumented, f"{len(undocumented)} of {len(found)} rows differ and no docstring says so:\n{shown}"
    return found


@pytest.mark.parametrize("group", sample_groups(all_rows(), ROWS_OF_A_SAMPLE), ids=lambda group: group.name)
def test_layers_are_what_tensorrt_does(group):
    assert len(check(group)) == len(group.rows)


@pytest.mark.slow
@pytest.mark.parametrize("group", all_groups(all_rows()), ids=lambda group: group.name)
def test_all_rows_are_what_tensorrt_does(group, outcomes):
    outcomes += check(group)


@pytest.mark.slow
def test_documented_differences_are_still_there(outcomes):
    if len(outcomes) < len(all_rows()):
        pytest.skip("subset: not every row has run, or one of them failed")
    differing = [outcome.name for outcome in outcomes if not outcome.is_green]
    assert [pattern for pattern in KNOWN if not fnmatch.filter(differing, pattern)] == []
