"""``assert_same`` sees every difference that a caller sees."""

from __future__ import annotations

import collections
import math

import pytest
import torch

from torchkiln_testing import OpClass, assert_same, assert_same_tensor, tolerance

NAN, INF = math.nan, math.inf
Point = collections.namedtuple("Point", "x y")
ONE = torch.ones(2)
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64)

SAME = [
    ({"a": ONE, "b": [1, None]}, {"a": ONE.clone(), "b": [1, None]}),
    (Point(ONE, 2), Point(ONE.clone(), 2)),
    ("text", "text"),
    (NAN, NAN),
    (complex(NAN, 1), complex(NAN, 1)),
    (torch.tensor([NAN, INF, -INF, -0.0]), torch.tensor([NAN, INF, -INF, -0.0])),
    (torch.nn.Parameter(ONE), ONE),
    (torch.ones(2, 3).t(), torch.ones(3, 2)),
    (torch.zeros(0, 3), torch.zeros(0, 3)),
    ((), ()),
]
DIFFERENT = [
    ((ONE,), [ONE], "result: expected structure"),
    ((ONE,), (ONE, ONE), "expected structure"),
    (Point(ONE, 2), (ONE, 2), "expected structure"),
    ({"a": ONE}, {"b": ONE}, "expected structure"),
    (None, 0, "result: expected NoneType, got int"),
    (1, True, "result: expected int, got bool"),
    (1, 1.0, "result: expected int, got float"),
    (ONE, 1.0, "result: expected Tensor, got float"),
    ("a", "b", "result: expected 'a', got 'b'"),
    (0.0, -0.0, "sign of a zero"),
    (1.0, 1.0 + 2**-52, "result"),
    (1j, 2j, "result"),
    (ONE, ONE.double(), "result: expected dtype torch.float32, got torch.float64"),
    (ONE, torch.ones(2, 1), r"result: expected shape torch.Size\(\[2\]\), got torch.Size\(\[2, 1\]\)"),
    (ONE, torch.ones(2, device="meta"), "result: expected device cpu, got meta"),
    (ONE, ONE.to_sparse(), "result: expected layout torch.strided, got torch.sparse_coo"),
    ({"a": [ONE, ONE]}, {"a": [ONE, ONE + 1]}, r"result\['a'\]\[1\] \(exact\): "),
    (torch.tensor([1, 2]), torch.tensor([1, 3]), "exact"),
    (torch.tensor([True]), torch.tensor([False]), "exact"),
    (torch.tensor([1.0]), torch.tensor([NAN]), "exact"),
    (torch.tensor([INF]), torch.tensor([-INF]), "exact"),
    (torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0]), "sign of a zero"),
    (torch.tensor([complex(1, 0.0)]), torch.tensor([complex(1, -0.0)]), "sign of a zero"),
]


@pytest.mark.parametrize(("expected", "got"), SAME, ids=str)
def test_same(expected, got):
    assert_same(expected, got, OpClass.EXACT)


@pytest.mark.parametrize(("expected", "got", "message"), DIFFERENT, ids=str)
def test_different(expected, got, message):
    with pytest.raises(AssertionError, match=message):
        assert_same(expected, got, OpClass.EXACT)


@pytest.mark.parametrize("op_class", OpClass, ids=lambda op_class: op_class.value)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_tolerance_is_the_bound(dtype, op_class):
    want = torch.tensor([1.0, 0.0, 2.0]).to(dtype)
    assert_same(want, want.clone(), op_class)
    bound = tolerance(dtype, op_class)
    allowed = bound.atol + bound.rtol * 2.0
    for factor, is_same in ((0.5, True), (4.0, False)):
        have = want.clone()
        have[2] = 2.0 + allowed * factor if allowed else (2.0 if is_same else 2.5)
        if is_same:
            assert_same_tensor(want, have, op_class)
        else:
            with pytest.raises(AssertionError, match=rf"tensor \({op_class.value}\)"):
                assert_same_tensor(want, have, op_class)


@pytest.mark.parametrize("op_class", [OpClass.POINTWISE, OpClass.MODEL], ids=lambda op_class: op_class.value)
def test_infinities_and_nan_are_no_tolerance(op_class):
    want = torch.tensor([INF, NAN, 1.0])
    assert_same(want, want.clone(), op_class)
    for index, value in ((0, 3e38), (0, NAN), (1, 0.0), (2, INF), (2, NAN)):
        have = want.clone()
        have[index] = value
        with pytest.raises(AssertionError):
            assert_same(want, have, op_class)


def test_a_model_is_measured_by_its_largest_finite_element():
    want = torch.tensor([1000.0, 0.0, INF])
    bound = tolerance(torch.float32, OpClass.MODEL)
    near, far = want.clone(), want.clone()
    near[1], far[1] = bound.atol * 900, bound.atol * 1100
    assert_same(want, near, OpClass.MODEL)
    with pytest.raises(AssertionError):
        assert_same(want, far, OpClass.MODEL)
    with pytest.raises(AssertionError):
        assert_same(want, near, OpClass.MATMUL)
    small = torch.tensor([1e-3])
    with pytest.raises(AssertionError):
        assert_same(small, small + bound.atol * 2, OpClass.MODEL)


def test_the_name_of_the_value_is_said():
    with pytest.raises(AssertionError, match=r"layer 3\[1\] \(pointwise\): "):
        assert_same((ONE, ONE), (ONE, ONE + 1), where="layer 3")
