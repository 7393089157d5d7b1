"""The conformance table: the reference against TensorRT on this GPU, every layer, dtype and edge value, in one process.

``TORCHKILN_CONFORMANCE_OUT=path`` writes ``path.json`` and ``path.md``; ``TORCHKILN_CONFORMANCE_ONLY=Unary,TopK`` runs some layers only.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from torchkiln_runtime import find_library, gpu_support
from torchkiln_runtime.conformance import KNOWN, Outcome, all_groups, all_rows, check_group, summary, table_json, table_markdown

pytestmark = pytest.mark.gpu

_ONLY = tuple(filter(None, os.environ.get("TORCHKILN_CONFORMANCE_ONLY", "").split(",")))
_GROUPS = [group for group in all_groups(all_rows()) if not _ONLY or group.name.split("-")[0] in _ONLY]


@pytest.fixture(scope="module")
def outcomes(pytestconfig: pytest.Config) -> Iterator[list[Outcome]]:
    found: list[Outcome] = []
    library = find_library()
    reason = gpu_support(library)
    if library is None or reason is not None:
        pytest.skip(f"engine: {reason}")
    yield found
    terminal = pytestconfig.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        terminal.write_line("\n" + summary(found))
    out = os.environ.get("TORCHKILN_CONFORMANCE_OUT")
    if out:
        # The order of the table, whatever order the groups ran in.
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        Path(f"{out}.json").write_text(table_json(found, library))
        Path(f"{out}.md").write_text(table_markdown(_by_layer(found), library))


def _by_layer(found: list[Outcome]) -> list[Outcome]:
    order = {layer: index for index, layer in enumerate(dict.fromkeys(outcome.layer for outcome in found))}
    return sorted(found, key=lambda outcome: order[outcome.layer])


@pytest.mark.parametrize("group", _GROUPS, ids=lambda group: group.name)
def test_layers_are_what_tensorrt_does(group, outcomes):
    mine = list(check_group(group, torch.device("cuda", 0)))
    outcomes += mine
    assert [outcome.name for outcome in mine] == [row.name for row in group.rows]
    undocumented = [outcome for outcome in mine if not outcome.is_green and outcome.known is None]
    shown = "\n".join(f"{outcome.name} {outcome.shapes}: {outcome.status}: {outcome.detail[:300]}" for outcome in undocumented)
    assert not undocumented, f"{len(undocumented)} of {len(mine)} rows differ and no docstring says so:\n{shown}"


def test_documented_differences_are_still_there(outcomes):
    if _ONLY:
        pytest.skip("subset: TORCHKILN_CONFORMANCE_ONLY is set, so the table is not complete")
    differing = [outcome.name for outcome in outcomes if not outcome.is_green]
    stale = [pattern for pattern in KNOWN if not fnmatch.filter(differing, pattern)]
    assert stale == []
