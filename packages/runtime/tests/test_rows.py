"""Every row of the conformance table builds on any machine, and the reference runs it."""

from __future__ import annotations

import fnmatch
from typing import Any

import pytest
import torch

from torchkiln_core import BuildError, layers
from torchkiln_runtime import ReferenceEngine, TensorRTBuilder
from torchkiln_runtime.conformance import KNOWN, Group, all_groups, all_rows, sample_groups, write_group
from torchkiln_runtime.conformance.fills import EDGE_COUNT, ordered
from torchkiln_runtime.conformance.known import known_difference

GROUPS = all_groups(all_rows())

NO_BFLOAT16 = r"no deconvolution in bfloat16\n(.*\n)*  fix: run it in float32"
NO_RUNNERS = r"has no runners that implement it(.*\n)*  node: .*\n  where: "
REFUSED = {row.name: NO_BFLOAT16 for row in all_rows() if row.layer == "Deconvolution" and row.dtype is torch.bfloat16}
REFUSED |= {row.name: NO_RUNNERS for row in all_rows() if row.layer in ("NonZero", "NMS")}
"""Why these do not build: the adapter does not write them, or TensorRT-RTX builds no engine of them."""


def building(group: Group) -> Any:
    """Cubic interpolation takes a second of build for each row; other tests build a sample."""
    slow = any(row.layer == "Resize" for row in group.rows)
    return pytest.param(group, id=group.name, marks=pytest.mark.slow if slow else ())


@pytest.mark.parametrize("group", [building(group) for group in all_groups([row for row in all_rows() if row.name not in REFUSED])])
def test_rows_build(group, ahead):
    network, counts = write_group(group)
    plan = TensorRTBuilder(ahead).build(network)
    assert len(plan.outputs) == sum(counts)


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_the_reference_runs_rows(group):
    network, _ = write_group(group)
    engine = ReferenceEngine(network)
    for sizes in group.sizes:
        for binding, tensor in zip(engine.outputs, engine(*group.values(sizes)), strict=True):
            assert tensor.dtype is binding.dtype
            assert tensor.is_contiguous()


@pytest.mark.parametrize("name", REFUSED)
def test_refused_rows_say_why(name, ahead):
    rows = tuple(row for row in all_rows() if row.name == name)
    network, _ = write_group(Group(name, rows, dynamic=False))
    with pytest.raises(BuildError, match=REFUSED[name]):
        TensorRTBuilder(ahead).build(network)
    assert known_difference(name) is not None


def test_known_differences_are_of_rows():
    names = [row.name for row in all_rows()]
    assert [pattern for pattern in KNOWN if not fnmatch.filter(names, pattern)] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_ordered_edges_have_no_nan_and_one_zero(dtype):
    values = ordered((EDGE_COUNT,), dtype, torch.Generator())
    assert not values.isnan().any()
    assert not (values.signbit() & (values == 0)).any()
    assert values.isinf().sum() == 2


def test_samples_have_rows_of_every_layer():
    samples = sample_groups(all_rows(), 8)
    assert {row.layer for row in all_rows()} == {row.layer for group in samples for row in group.rows}
    assert all(0 < len(group.rows) <= 8 and group.dynamic == any(row.has_sizes for row in group.rows) for group in samples)
    assert {row.dtype for group in samples for row in group.rows} >= {torch.float32, torch.float16, torch.bfloat16, torch.int64}


def test_rows_cover_every_layer_and_have_unique_names():
    rows = all_rows()
    kinds = {name for name in layers.__all__ if hasattr(getattr(layers, name), "kind")}
    assert {row.layer for row in rows} == kinds
    assert len({row.name for row in rows}) == len(rows)


def test_rows_are_the_same_in_every_process():
    row = next(row for row in all_rows() if row.name == "MatrixMultiply/plain/float32")
    first, second = row.values({"n": 3, "m": 4}), row.values({"n": 3, "m": 4})
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
