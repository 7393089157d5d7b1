"""Programs of shape operations equal eager at every size; what differed once is kept here."""

from __future__ import annotations

from typing import Any

import fuzz_sizes
import pytest
import torch
from fuzz_sizes import BINARY, DATA, TYPICAL, UNARY, SizeProgram, SizeStep, arguments, check

from torchkiln_converters import ConverterRegistry, Support, builtin_converters, converter
from torchkiln_core import Network, Value
from torchkiln_core.layers import Unary, UnaryOp

OPTIONS: dict[str, Any] = {"engine": "reference", "min_block_size": 1}


def program(*steps: tuple[str, tuple[int, ...]], number: str = "n // 2") -> SizeProgram:
    made = tuple(SizeStep(name, operands, number) for name, operands in steps)
    return SizeProgram(made, tuple(range(4, 4 + len(made))))


def test_some_programs_equal_eager(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz_sizes.main(["--programs", "4", "--seed", "3"]) == 0
    assert "\n4 programs: " in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_two_thousand_programs_equal_eager(seed: int) -> None:
    assert fuzz_sizes.main(["--programs", "200", "--seed", str(seed)]) == 0


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_the_same_programs_equal_eager_on_tensorrt(seed: int) -> None:
    assert fuzz_sizes.main(["--programs", "200", "--seed", str(seed), "--engine", "tensorrt"]) == 0


def test_every_call_of_the_grammar_runs_somewhere() -> None:
    values = arguments(TYPICAL)
    for name in (*UNARY, *DATA):
        assert any(fuzz_sizes._attempt(SizeStep(name, (index,), number), values) is not None for index in range(4) for number in ("n", "2"))
    for name in BINARY:
        pairs = [(left, right) for left in range(4) for right in range(4)]
        assert any(fuzz_sizes._attempt(SizeStep(name, pair, "n"), values) is not None for pair in pairs)


def test_a_wrong_number_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    @converter(torch.ops.aten.relu.default, Support())
    def wrong(net: Network, self: Value) -> Value:
        return net.add(Unary(UnaryOp.NEG), self)

    monkeypatch.setattr("torchkiln.stages.default_registry", lambda: ConverterRegistry(builtin_converters()).extend(wrong))
    with pytest.raises(AssertionError):
        check(program(("relu", (0,)), ("flatten", (4,))), OPTIONS)


@pytest.mark.parametrize(
    "steps",
    [
        # Equal calls whose sizes depend on data were merged, and what followed referred to a size that was gone.
        [("mask", (0,)), ("mask", (0,))],
        # torch's own program asserts that the size is at most 1, as it assumed while it was exported.
        pytest.param([("repeat_interleave", (3,)), ("expand_as", (4, 4))], marks=pytest.mark.slow),
    ],
    ids=["equal masks", "an assumption of torch"],
)
def test_what_differed_once_is_equal(steps: list[tuple[str, tuple[int, ...]]]) -> None:
    assert check(program(*steps), OPTIONS) is not None
