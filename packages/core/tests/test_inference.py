"""Inference leaves the program's shape environment as it was."""

from __future__ import annotations

import pytest
import torch
from core_programs import Symbols
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from torchkiln_core import InternalError
from torchkiln_core.inference import fake_mode_of, no_new_guards, statically_equal


def _fake(symbols, *labels):
    with symbols.mode:
        return torch.empty([symbols.ints[label] for label in labels])


def test_a_decision_about_a_symbol_raises():
    symbols = Symbols({"n": 5, "m": 5})
    before = symbols.state()
    with pytest.raises(Exception, match=r"[Gg]uard"), no_new_guards(symbols.mode), symbols.mode:
        _fake(symbols, "n") + _fake(symbols, "m")
    with pytest.raises(Exception, match=r"[Gg]uard"), no_new_guards(symbols.mode):
        bool(symbols.ints["n"] == 5)
    with pytest.raises(Exception, match=r"[Gg]uard"), no_new_guards(symbols.mode):
        int(symbols.ints["n"])
    assert symbols.state() == before


def test_what_is_known_is_no_guard():
    symbols = Symbols({"n": 5})
    with no_new_guards(symbols.mode):
        assert symbols.ints["n"] >= 2
        assert symbols.ints["n"] != 1
        assert symbols.ints["n"] + 1 > symbols.ints["n"]
    assert symbols.state()[:2] == (0, 0)


def test_a_tensor_that_may_be_empty_is_inferred():
    symbols = Symbols({"n": 5})
    with no_new_guards(symbols.mode), symbols.mode:
        first, second = (torch.empty(3).new_empty((symbols.ints["n"] - 2, 3)) for _ in range(2))
    assert first.shape == second.shape
    assert symbols.state()[:2] == (0, 0)


def test_a_layout_is_no_decision():
    symbols = Symbols({"n": 5, "m": 4})
    with no_new_guards(symbols.mode), symbols.mode:
        mask = torch.empty((symbols.ints["n"], symbols.ints["m"], (symbols.ints["n"] + 1) // 2), dtype=torch.bool)
        assert mask.to(torch.int32).shape == mask.shape
    assert symbols.state()[:2] == (0, 0)
    assert "evaluate_sym_node" not in vars(symbols.env)


def test_the_environment_guards_again_afterwards():
    symbols = Symbols({"n": 5})
    with no_new_guards(symbols.mode), no_new_guards(symbols.mode):
        pass
    with pytest.raises(KeyError), no_new_guards(symbols.mode):
        raise KeyError
    assert "_check_frozen" not in vars(symbols.env)
    assert not symbols.env.frozen
    assert symbols.ints["n"] == 5
    assert len(symbols.env.guards) == 1


def test_fresh_unbacked_symbols_are_left_behind_by_nobody():
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    env.create_unbacked_symint()
    pending = list(env.pending_fresh_unbacked_symbols)
    with no_new_guards(mode):
        env.create_unbacked_symint()
    assert env.pending_fresh_unbacked_symbols == pending


def test_a_mode_without_an_environment():
    with no_new_guards(FakeTensorMode()), FakeTensorMode():
        assert torch.empty(2).shape == (2,)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (3, 3, True),
        (3, 4, False),
        ("n", "n", True),
        ("n", "m", None),
        ("n", 5, None),
        ("n + 1", "n", False),
        ("2*n + 2", "2*(n + 1)", True),
        ("(n + 1)*(m + 1)", "n*m + n + m + 1", True),
        ("n//2", "n//2", True),
        ("n//2", "n", None),
        ("max(n, m)", "max(m, n)", True),
    ],
)
def test_statically_equal(left, right, expected):
    symbols = Symbols({"n": 5, "m": 5})
    assert statically_equal(symbols.size(left), symbols.size(right), symbols.mode) is expected
    assert statically_equal(symbols.size(right), symbols.size(left), symbols.mode) is expected
    assert symbols.state()[:2] == (0, 0)


def test_statically_equal_without_an_environment():
    symbols = Symbols({"n": 5, "m": 5})
    assert statically_equal(symbols.size("n"), symbols.size("m"), FakeTensorMode()) is None


def test_fake_mode_of():
    symbols = Symbols({"n": 5})
    assert fake_mode_of(_fake(symbols, "n")) is symbols.mode
    with pytest.raises(InternalError, match="expected a fake tensor, got Tensor"):
        fake_mode_of(torch.zeros(1))
