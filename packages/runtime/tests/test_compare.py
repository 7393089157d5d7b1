"""The comparison of the conformance table sees what it must."""

from __future__ import annotations

import math

import pytest
import torch

from torchkiln_runtime.conformance.check import Outcome
from torchkiln_runtime.conformance.compare import Tolerance, difference
from torchkiln_runtime.conformance.table import summary, table_json, table_markdown
from torchkiln_runtime.library import Library, Messages


def compare(expected, got, *, exact=False, relaxed=1.0, absolute=0.0, dtype=torch.float32):
    tolerance = None if exact else Tolerance(relaxed, absolute)
    return difference(torch.tensor(expected, dtype=dtype), torch.tensor(got, dtype=dtype), tolerance)


@pytest.mark.parametrize("values", [[1.0, -0.0, math.inf], [math.nan, 2.0], []])
def test_equal_values_are_exact(values):
    assert compare(values, values, exact=True) == (True, None)


@pytest.mark.parametrize(
    ("expected", "got", "what"),
    [
        ([0.0], [-0.0], "sign of zero"),
        ([math.nan], [1.0], "NaN"),
        ([1.0], [math.nan], "NaN"),
        ([math.inf], [-math.inf], "infinity"),
        ([3e38], [math.inf], "infinity"),
        ([1.0], [1.001], "differs by more"),
        ([1e-5], [1.1e-5], "differs by more"),
    ],
)
def test_differences_are_named(expected, got, what):
    same, problem = compare(expected, got)
    assert not same
    assert what in problem


def test_rounding_is_close_but_not_exact():
    one = [1.0]
    next_to_one = [1.0 + 2**-23]
    assert compare(one, next_to_one) == (False, None)
    assert compare(one, next_to_one, exact=True)[1] is not None


@pytest.mark.parametrize(("dtype", "off"), [(torch.float32, 2e-7), (torch.float16, 1.5e-3), (torch.bfloat16, 1.2e-2)])
def test_results_near_zero_may_be_off_by_epsilons_where_a_row_says_so(dtype, off):
    assert compare([0.0, 1.0], [off, 1.0], dtype=dtype)[1] is not None
    assert compare([0.0, 1.0], [off, 1.0], dtype=dtype, absolute=2) == (False, None)
    assert compare([0.0, 1.0], [2 * off, 1.0], dtype=dtype, absolute=2)[1] is not None
    assert compare([0.0, math.nan], [off, 1.0], dtype=dtype, absolute=2)[1] is not None


def test_integers_shapes_and_dtypes_must_be_equal():
    assert compare([1, 2], [1, 3], dtype=torch.int64)[1] is not None
    assert difference(torch.ones(2), torch.ones(1, 2), Tolerance())[1] is not None
    assert difference(torch.ones(2), torch.ones(2, dtype=torch.float16), Tolerance())[1] is not None


def test_the_table_shows_every_row_that_is_not_green():
    outcomes = [
        Outcome("Unary", "EXP", "float32", "static", "close", "", None),
        Outcome("Unary", "EXP", "float16", "dynamic", "differs", "NaN differs", None),
        Outcome("Unary", "NEG", "float16", "static", "differs", "sign", "sign of zero is lost"),
    ]
    library = Library("tensorrt_rtx", "1.6.1", None, Messages(), None)
    text = table_markdown(outcomes, library)
    assert "| EXP | ≈ · | · ≠ |" in text
    assert "UNDOCUMENTED. NaN differs" in text
    assert "sign of zero is lost" in text
    assert '"version"' not in table_json(outcomes, library)
    assert "1.6.1" in table_json(outcomes, library)
    assert summary(outcomes).splitlines()[1].split() == ["Unary", "0", "1", "2", "0"]
