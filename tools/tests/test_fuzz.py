"""The fuzzer makes programs that eager runs, and finds and shrinks what a wrong converter does to them."""

from __future__ import annotations

import itertools
from typing import Any

import fuzz
import pytest
import torch
from hypothesis import find, settings

from torchkiln_converters import ConverterRegistry, Support, builtin_converters, converter
from torchkiln_core import Network, Value
from torchkiln_core.layers import Unary, UnaryOp

OPTIONS = {"engine": "reference", "min_block_size": 1}


@pytest.mark.parametrize("capture", ["static", "dynamic", "export"])
def test_programs_equal_eager(capture: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main(["--programs", "5", "--seed", "7", "--capture", capture]) == 0
    shown = capsys.readouterr().out.splitlines()[-1]
    # Some decompositions walk over a dimension, which is dynamic here.
    assert shown == "5 programs: 5 engine" if capture != "dynamic" else "not captured" not in shown


@pytest.mark.parametrize("name", [*fuzz.UNARY, *fuzz.BINARY])
def test_every_call_equals_eager(name: str) -> None:
    """Alone, on the first operands that it takes."""
    arguments = (((2, 3, 4), torch.float32), ((3, 4), torch.int32), ((3, 4), torch.float32), ((4, 2), torch.int64), ((4,), torch.float32))
    for operands in itertools.product(range(len(arguments)), repeat=1 + (name in fuzz.BINARY)):
        program = fuzz.FuzzProgram(arguments, (fuzz.Step(name, operands),), (len(arguments),))
        if fuzz._attempt(program.steps[0], program.example()) is not None:
            assert fuzz.check(program, OPTIONS)
            return
    pytest.fail("eager refuses it for every operand")


def test_a_wrong_number_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    @converter(torch.ops.aten.abs.default, Support())
    def wrong(net: Network, self: Value) -> Value:
        return net.add(Unary(UnaryOp.NEG), self)

    monkeypatch.setattr("torchkiln.stages.default_registry", lambda: ConverterRegistry(builtin_converters()).extend(wrong))
    monkeypatch.setattr(fuzz, "UNARY", {"abs": fuzz.UNARY["abs"], "neg": fuzz.UNARY["neg"]})
    monkeypatch.setattr(fuzz, "BINARY", {})
    assert fuzz.main(["--programs", "50"]) == 1
    shown = capsys.readouterr().out
    assert "AssertionError" in shown
    assert "Step(name='abs'" in shown


def test_programs_share_values_and_write_in_place() -> None:
    def shares(program: Any) -> bool:
        read = [index for step in program.steps for index in step.operands]
        return len(read) > len(set(read)) and any(step.name in fuzz.IN_PLACE for step in program.steps)

    program = find(fuzz.programs(), shares, settings=settings(max_examples=2000, database=None))
    assert fuzz.check(program, OPTIONS)
    given, again = program.example(), program.example()
    program(*given)
    assert [(x.shape, x.dtype) for x in given] == [(x.shape, x.dtype) for x in again]


def test_a_call_that_eager_refuses_is_left_out() -> None:
    x = torch.ones(3, 4)
    assert fuzz._attempt(fuzz.Step("matmul", (0, 1)), [x, x.T]) is not None
    assert fuzz._attempt(fuzz.Step("matmul", (0, 0)), [x]) is None
    assert fuzz._attempt(fuzz.Step("zero_", (0,)), [x[:1].expand(3, 4)]) is None
    square = x[:, :3]
    assert fuzz._attempt(fuzz.Step("add_", (0, 1)), [square, square.T]) is None
    assert torch.equal(x, torch.ones(3, 4))
    assert fuzz._attempt(fuzz.Step("add_", (0, 1)), [square, x[0, 3]]) is not None
    assert fuzz._attempt(fuzz.Step("add_", (0, 0)), [square]) is not None
