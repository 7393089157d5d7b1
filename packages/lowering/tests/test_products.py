"""Products of more than two tensors against eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from lowering_programs import ELEMENTARY, FLOATS, Oracle, aten, capture, run, targets, whole
from torch.export import Dim

from torchkiln_lowering import AtenLowering

ORACLE = Oracle(aten.linear.default, aten.matmul.default, aten.reshape.default, base=ELEMENTARY)


def _number(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("lead", [(), (6,), (2, 0), (4, 2, 3)], ids=str)
def test_bilinear(lead: tuple[int, ...], bias: bool, dtype: torch.dtype) -> None:
    inputs = tuple(item.to(dtype) for item in (_number(*lead, 3), _number(*lead, 5, seed=1), _number(4, 3, 5, seed=2), _number(4, seed=3)))
    inputs = inputs if bias else inputs[:3]
    lowered = AtenLowering().lower(whole(F.bilinear, inputs), ORACLE)
    assert aten.bilinear.default not in targets(lowered)
    (got,) = run(lowered, *inputs)
    exact = F.bilinear(*(item.double() for item in inputs)).to(dtype)
    loose = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    torch.testing.assert_close(got, exact, rtol=loose, atol=loose)


def test_bilinear_as_a_captured_graph_calls_it() -> None:
    """``torch.compile`` hands over ``_trilinear``; other products of three stay whole."""
    inputs = (_number(6, 3), _number(6, 5, seed=1), _number(4, 3, 5, seed=2))
    lowered = AtenLowering().lower(capture(F.bilinear, inputs), ORACLE)
    assert {aten.bilinear.default, aten._trilinear.default}.isdisjoint(targets(lowered))
    torch.testing.assert_close(run(lowered, *inputs)[0], F.bilinear(*inputs))
    program = capture(lambda x, y, z: torch._trilinear(x, y, z, [], [], [], [0]), (_number(3, 4),) * 3)
    assert aten._trilinear.default in targets(AtenLowering().lower(program, ORACLE))


def test_rows_may_be_symbolic_and_keep_to_themselves() -> None:
    inputs = (_number(4, 3), _number(4, 5, seed=1), _number(2, 3, 5, seed=2))
    rows = {0: Dim("rows", min=1, max=16)}
    lowered = AtenLowering().lower(whole(F.bilinear, inputs, ((rows, rows, None),)), ORACLE)
    assert aten.bilinear.default not in targets(lowered)
    for count in (1, 9):
        left, right = _number(count, 3), _number(count, 5, seed=1)
        left[0, 1], right[-1, 2] = float("inf"), float("nan")
        (got,) = run(lowered, left, right, inputs[2])
        torch.testing.assert_close(got, F.bilinear(left, right, inputs[2]), equal_nan=True)
