"""Output shapes follow from input shapes by the record's expressions."""

from __future__ import annotations

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchkiln_core import Binding, InternalError, ShapeOutOfProfile
from torchkiln_core.size import evaluate, parse_size
from torchkiln_runtime.shapes import ShapeRules, compile_size, find_symbols


def binding(name: str, *shape: int | str) -> Binding:
    return Binding(name, torch.float32, tuple(parse_size(size) if isinstance(size, str) else size for size in shape))


def rules(inputs, outputs, high=100):
    ranges = [
        ([0 if not isinstance(s, int) else s for s in b.shape], [high if not isinstance(s, int) else s for s in b.shape]) for b in inputs
    ]
    return ShapeRules(inputs, outputs, find_symbols(inputs), ranges)


@settings(deadline=None)
@given(st.integers(0, 50), st.integers(1, 50))
def test_compiled_sizes_agree_with_evaluated_ones(a, b):
    known = {sympy.Symbol(name, integer=True, nonnegative=True): index for index, name in enumerate("ab")}
    for text in ("a", "a + b + 3", "2*a*b - b", "a // b", "a % b", "max(a, b)", "min(a, 2*b) + a*a", "-a + 7", "(a + 1) // 2 * b", "5"):
        size = parse_size(text)
        compiled = compile_size(size, known)
        assert compiled is not None
        assert compiled([a, b]) == evaluate(size, {"a": a, "b": b})


def test_only_linear_sizes_give_a_symbol():
    inputs = [binding("x", "12 // n", "n // 2", "n*n", "3*(m - 1) + 5", "n + k")]
    assert find_symbols(inputs) == (("m", 0, 3),)


def test_symbols_are_read_where_they_stand():
    inputs = [binding("x", "2*n + 1", 3), binding("y", "n", "m")]
    assert sorted(find_symbols(inputs)) == [("m", 1, 1), ("n", 1, 0)]
    assert rules(inputs, [binding("z", "n + m")]).output_shapes(((9, 3), (4, 5))) == ((9,),)


def test_related_dimensions_must_agree():
    checked = rules([binding("x", "n", 3), binding("y", "2*n")], [binding("z", "n")])
    assert checked.output_shapes(((4, 3), (8,))) == ((4,),)
    with pytest.raises(ShapeOutOfProfile, match=r"'y', dimension 0: expected 8 \(2\*n\), got 9"):
        checked.output_shapes(((4, 3), (9,)))


def test_the_same_symbol_must_have_one_value():
    with pytest.raises(ShapeOutOfProfile, match=r"'x', dimension 1: expected 4 \(n\), got 5"):
        rules([binding("x", "n", "n")], []).output_shapes(((4, 5),))


def test_a_linear_dimension_is_solved():
    solved = rules([binding("x", "2*n")], [binding("z", "n + 1"), binding("w", "2*n")])
    assert solved.output_shapes(((6,),)) == ((4,), (6,))
    with pytest.raises(ShapeOutOfProfile, match="no integer solution"):
        solved.output_shapes(((7,),))


def test_an_expression_of_an_input_is_read_as_a_whole():
    assert rules([binding("x", "n // 2")], [binding("z", "n // 2", "3*(n // 2)")]).output_shapes(((6,),)) == ((6, 18),)


def test_a_product_is_read_from_a_multiple_of_it():
    outputs = [binding("z", "8*n*m", "2*n*m - 1", "n*m*k", "n*m + 3"), binding("w", "max(n*m, k)")]
    reached = rules([binding("x", "4*n*m + 2", "k")], outputs)
    assert reached.output_shapes(((26, 5),)) == ((48, 11, 30, 9), (6,))


def test_an_undetermined_output_is_our_error():
    with pytest.raises(InternalError, match="no input determines"):
        rules([binding("x", "n*m", "m // 2")], [binding("z", "n*m + m")])
    with pytest.raises(InternalError, match="no input determines"):
        rules([binding("x", "n // 2")], [binding("z", "n")])
