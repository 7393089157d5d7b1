"""Every row of the tables: the reference engine agrees with eager PyTorch, and TensorRT accepts the network."""

from __future__ import annotations

import pytest


from torchkiln_testing import check_op


def test_values(case, converter):
    check_op(case, converter)


@pytest.mark.slow
def test_builds(case, converter, builder):
    check_op(case, converter, builder)


def test_every_operator_has_a_row(registry, cases):
    missing = registry.targets - {case.op for case in cases}
    assert not missing, f"no row for {', '.join(sorted(map(str, missing)))}"
