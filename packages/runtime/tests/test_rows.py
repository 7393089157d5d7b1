"""Every row of the conformance table builds on any machine, and the reference runs it."""

from __future__ import annotations

import pytest
import torch

from torchkiln_core import layers
from torchkiln_runtime import ReferenceEngine, TensorRTBuilder
from torchkiln_runtime.conformance import Group, all_groups, all_rows, write_group

GROUPS = all_groups(all_rows())

_NOT_ON_CPU = ("Pooling/AVERAGE 3-d/float16", "Pooling/AVERAGE 3-d/bfloat16")
"""torch has no kernels for these on the CPU."""


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_rows_build(group, ahead):
    network, counts = write_group(group)
    plan = TensorRTBuilder(ahead).build(network)
    assert len(plan.outputs) == sum(counts)


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_the_reference_runs_rows(group):
    group = Group(group.name, tuple(row for row in group.rows if row.name not in _NOT_ON_CPU), group.dynamic)
    network, _ = write_group(group)
    engine = ReferenceEngine(network)
    for sizes in group.sizes:
        for binding, tensor in zip(engine.outputs, engine(*group.values(sizes)), strict=True):
            assert tensor.dtype is binding.dtype
            assert tensor.is_contiguous()


def test_rows_cover_every_layer_and_have_unique_names():
    rows = all_rows()
    kinds = {name for name in layers.__all__ if hasattr(getattr(layers, name), "kind")}
    assert {row.layer for row in rows} == kinds
    assert len({row.name for row in rows}) == len(rows)


def test_rows_are_the_same_in_every_process():
    row = next(row for row in all_rows() if row.name == "MatrixMultiply/plain/float32")
    first, second = row.values({"n": 3, "m": 4}), row.values({"n": 3, "m": 4})
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
