"""Truth values count, add, multiply and compare as in eager, in an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchkiln
from torchkiln_testing import OpClass, assert_same

A = torch.tensor([[True, False, True, False], [False, False, True, True], [True, True, True, True]])
B = torch.tensor([[True, True, False, False]])

EXPRESSIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "sums": lambda a, b: (a.sum(1), a.sum(), a.sum(0, dtype=torch.float32), a.cumsum(1), torch.count_nonzero(a, 1)),
    "products": lambda a, b: (a * b, a.prod(1), a.float() @ a.float().T),
    "additions": lambda a, b: (a + b, a + 2, a * 0.5 + b * 2, a / 2, 1 - a.int()),
    "logic": lambda a, b: (a ^ b, (a & ~b) | (b & ~a), torch.logical_xor(a, b), torch.logical_not(a)),
    "any and all": lambda a, b: (a.any(1), a.all(1), a.any(), a.all(), a.any((0, 1))),
    "order": lambda a, b: (a == b, a != b, a > b, a <= b, a > 0, b == 1, torch.maximum(a, b), torch.minimum(a, b)),
    "extremes": lambda a, b: (a.amax(0), a.amin(1, keepdim=True), a.max(1).values, a.min(0).values, a.max(), a.int().argmax(1)),
    "moves": lambda a, b: (torch.where(a, b, ~b), a.masked_fill(b, True), torch.cat([a, b]).flip(0)[1:], a.tril(), a[:, [0, 2]]),
    "casts": lambda a, b: ((a.float() * 3 - b.float()).bool(), a.half(), a.long(), torch.isin(a.int(), torch.tensor([1]))),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_truth_values(name: str) -> None:
    function = EXPRESSIONS[name]
    compiled = torchkiln.compile(function, (A, B), engine="reference", require_full_compilation=True)
    assert [segment.kind for segment in compiled.report.segments] == ["engine"]
    assert_same(function(A, B), compiled(A, B), OpClass.EXACT)
    assert_same(function(~A, B), compiled(~A, B), OpClass.EXACT)
