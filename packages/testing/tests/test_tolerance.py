"""The tolerance table."""

from __future__ import annotations

import itertools

import pytest
import torch

from torchkiln_testing import TOLERANCES, OpClass, Tolerance, tolerance

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
ORDERS = ((OpClass.POINTWISE, OpClass.REDUCTION, OpClass.MATMUL, OpClass.MODEL), (OpClass.POINTWISE, OpClass.GATE, OpClass.MATMUL))


def test_the_table_is_complete_and_read_only():
    assert set(TOLERANCES) == set(itertools.product(FLOATS, set(OpClass) - {OpClass.EXACT}))
    with pytest.raises(TypeError):
        TOLERANCES[torch.int8, OpClass.MODEL] = Tolerance(1.0, 1.0)


@pytest.mark.parametrize("classes", ORDERS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_class_with_more_roundings_is_no_tighter(dtype, classes):
    rows = [tolerance(dtype, op_class) for op_class in classes]
    assert all(one.rtol <= two.rtol and one.atol <= two.atol for one, two in itertools.pairwise(rows))
    assert all(torch.finfo(dtype).eps <= row.rtol < 0.1 for row in rows)


def test_everything_else_is_exact():
    exact = Tolerance(0.0, 0.0)
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.float8_e4m3fn):
        assert all(tolerance(dtype, op_class) == exact for op_class in OpClass)
    assert all(tolerance(dtype, OpClass.EXACT) == exact for dtype in FLOATS)


def test_complex_counts_as_its_real_dtype():
    for dtype, real in ((torch.complex64, torch.float32), (torch.complex128, torch.float64)):
        assert all(tolerance(dtype, op_class) == tolerance(real, op_class) for op_class in OpClass)
