"""The sweep finds what is wrong: numbers, crashes, and what torch cannot trace; and it counts what is right."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import opinfo
import opinfo_call as calls
import pytest
import torch

from torchkiln_converters import ConverterRegistry, Support, builtin_converters, converter
from torchkiln_core import Network, Value
from torchkiln_core.layers import Unary, UnaryOp
from torchkiln_testing import OpClass

SETTINGS = opinfo.Settings("cpu", calls.Capture.STATIC, {"engine": "reference", "min_block_size": 1})
X = torch.tensor([1.0, 4.0, 9.0])


class Sample:
    """A ``SampleInput`` of the database."""

    def __init__(self, input: Any, *args: Any, **kwargs: Any) -> None:
        self.input, self.args, self.kwargs = input, args, kwargs


def outcome(function: Any, *args: Any, **kwargs: Any) -> tuple[str, tuple[str, ...], str]:
    found = opinfo.check("op", calls.SampleCall.of(function, Sample(*args, **kwargs)), ("float32", 0), SETTINGS)
    return found.outcome, found.refusals, found.detail


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def use(monkeypatch: pytest.MonkeyPatch, function: Any) -> None:
    """Makes ``function`` the converter of ``aten.sqrt``."""
    made = converter(torch.ops.aten.sqrt.default, Support())(function)
    monkeypatch.setattr("torchkiln.stages.default_registry", lambda: ConverterRegistry(builtin_converters()).extend(made))


def test_equal_in_an_engine() -> None:
    assert outcome(torch.sqrt, X) == ("engine", (), "")
    assert outcome(torch.cat, [X, X], dim=0)[0] == "engine"
    assert outcome(lambda x: {"a": (x + 1, 7)}, X)[0] == "engine"


def test_equal_with_the_refusal_named() -> None:
    found, refusals, _ = outcome(torch.lgamma, X)
    assert found == "refused"
    assert any(item.startswith("aten.lgamma.default [no-converter]") for item in refusals)


def test_other_numbers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def sqrt(net: Network, self: Value) -> Value:
        return net.add(Unary(UnaryOp.EXP), self)

    use(monkeypatch, sqrt)
    found, _, detail = outcome(torch.sqrt, X)
    assert found == "different"
    assert "not close" in detail


def test_a_broken_converter_is_named_though_the_result_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    def sqrt(net: Network, self: Value) -> Value:
        raise ZeroDivisionError("of the test")

    use(monkeypatch, sqrt)
    with pytest.warns(UserWarning, match="of the test"):
        found, refusals, _ = outcome(torch.sqrt, X)
    assert found == "refused"
    assert any("[build-failed]" in item for item in refusals)


def test_a_crash_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("of the test")

    monkeypatch.setattr("torchkiln.stages.Compiler.lower", fail)
    assert outcome(torch.sqrt, X)[::2] == ("crashed", "RuntimeError: of the test")


def test_what_is_written_to_an_argument_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(lambda x: x.add_(1), X)[0] == "engine"
    assert torch.equal(X, torch.tensor([1.0, 4.0, 9.0]))
    monkeypatch.setattr(calls.CompiledCall, "__call__", lambda self: (self.call(*self.call.tensors()), self.call.tensors()))
    assert outcome(lambda x: x.add_(1), X)[0] == "different"


def test_what_torch_cannot_trace_is_no_fault_of_ours() -> None:
    assert outcome(lambda x: x.tolist(), X)[0] == "not captured"
    assert outcome(torch.Tensor.item, X[0])[0] == "not captured"


def test_a_sample_that_never_ends_is_stopped() -> None:
    with pytest.raises(calls.TooSlow), calls.time_limit(1):
        time.sleep(30)


def test_a_half_result_may_be_closer_than_eager() -> None:
    half = torch.tensor([0.3, 1.7], dtype=torch.float16)
    call = calls.SampleCall.of(lambda x: ((x.float() + 1000) - 1000).to(x.dtype), Sample(half))
    eager = ((half + 1000) - 1000, [half])
    assert opinfo._is_closer(call, eager, call.eager(), opinfo.OpClass.REDUCTION)
    assert not opinfo._is_closer(call, eager, eager, opinfo.OpClass.REDUCTION)


def test_the_order_of_equal_elements_is_open() -> None:
    call = calls.SampleCall.of(torch.topk, Sample(torch.tensor([3, 5, 5, 1]), 1))
    places = [(torch.return_types.topk((torch.tensor([5]), torch.tensor([at]))), []) for at in (1, 2, 0)]
    first, second, wrong = (opinfo._comparable("topk", call, place) for place in places)
    opinfo.assert_same(first, second)
    with pytest.raises(AssertionError):
        opinfo.assert_same(first, wrong)


@pytest.mark.parametrize("capture", ["static", "dynamic", "export"])
def test_a_sweep_writes_what_it_found(capture: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "found.json"
    settings = ["--only", "add,lgamma", "--dtypes", "float32,bool", "--limit", "2", "--capture", capture]
    assert opinfo.main(["--out", str(path), *settings]) == 0
    record = json.loads(path.read_text())
    assert record["counts"]["engine"] >= 3
    assert {row["op"] for row in record["results"]} == {"add", "lgamma"}
    shown = capsys.readouterr().out
    assert opinfo.main(["--from-json", str(path)]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize("capture", ["static", "dynamic"])
def test_what_sweeps_have_found_stays_right(capture: str) -> None:
    names = "copysign,div,floor_divide,polar,unsafe_chunk,cdist,nn.functional.embedding_bag,nn.functional.pdist,nn.functional.unfold"
    assert opinfo.main(["--only", names, "--dtypes", "float32", "--limit", "1", "--capture", capture]) == 0


def test_an_unknown_operator_is_refused() -> None:
    with pytest.raises(ValueError, match="no operators sqroot"):
        opinfo.main(["--only", "sqroot"])


@pytest.mark.parametrize(("off", "within"), [(0.0, True), (4e-3, True), (-4e-3, True), (0.05, False), (-0.05, False)])
def test_results_may_be_off_by_what_a_rounding_of_the_arguments_makes(off: float, within: bool) -> None:
    x = torch.tensor([9.0, 1.0, 0.0], dtype=torch.float16)  # exp of 9 moves by up to 0.9 % when 9 is rounded
    call = calls.SampleCall.of(torch.exp, Sample(x))
    got = torch.exp(x.double()) * torch.tensor([1 + off, 1.0, 1.0])
    assert opinfo.is_within_roundings(call, (got.half(), [x]), torch.float16, OpClass.POINTWISE) is within


@pytest.mark.parametrize(("off", "within"), [(1e-5, True), (1e-3, False)])
def test_results_may_be_off_by_what_roundings_on_the_way_make(off: float, within: bool) -> None:
    call = calls.SampleCall.of(lambda x: (x.exp() + 1000) - 1000, Sample(torch.tensor([0.0])))
    assert opinfo.is_within_roundings(call, (torch.tensor([1 + off]), [torch.tensor([0.0])]), torch.float32, OpClass.POINTWISE) is within


def test_random_numbers_are_those_that_the_dtype_of_the_call_gets() -> None:
    x = torch.linspace(1, 2, 64, dtype=torch.float16)
    call = calls.SampleCall.of(lambda x: x * (torch.rand_like(x) > 0.5), Sample(x))
    (got, _), (other, _) = call.eager(), call.widened((torch.float16,), torch.float64).eager()
    assert not torch.equal(got == 0, other == 0)
    assert opinfo.is_within_roundings(call, (got, [x]), torch.float16, OpClass.POINTWISE)
    assert not opinfo.is_within_roundings(call, (other.half(), [x]), torch.float16, OpClass.POINTWISE)


def test_the_state_of_a_generator_that_draws_nothing_is_open() -> None:
    first, other = ((X, X, torch.tensor(seed)) for seed in (1, 2))
    name = "torch.ops.aten._flash_attention_forward"
    call = calls.SampleCall.of(torch.sqrt, Sample(X))
    for one, another in zip(*(opinfo._comparable(name, call, (results, [X])) for results in (first, other)), strict=True):
        torch.testing.assert_close(one, another)


def test_what_runs_on_another_device_is_left_out() -> None:
    assert opinfo._is_on("cpu", [1, {"a": X}])
    assert not opinfo._is_on("cuda", [1, {"a": X}])
    on_gpu = dataclasses.replace(SETTINGS, device="cuda")
    assert opinfo.check("arange", calls.SampleCall.of(torch.arange, Sample(2)), ("float32", 0), on_gpu) is None


def test_an_infinite_result_excuses_no_number() -> None:
    x = torch.tensor([3.0])
    call = calls.SampleCall.of(lambda x: 1 / (x.exp() - x.exp()), Sample(x))
    assert not opinfo.is_within_roundings(call, (torch.tensor([5.0]), [x]), torch.float32, OpClass.POINTWISE)
    assert opinfo.is_within_roundings(call, (torch.tensor([float("inf")]), [x]), torch.float32, OpClass.POINTWISE)


@pytest.mark.parametrize(("divisor", "undefined"), [(0, True), (3, False)])
def test_what_the_host_refuses_to_divide_has_no_result(divisor: int, undefined: bool) -> None:
    call = calls.SampleCall.of(torch.remainder, Sample(torch.tensor([7]), torch.tensor([divisor])))
    assert opinfo._divides_by_zero(call) is undefined


def test_arguments_that_are_written_must_be_right_too() -> None:
    call = calls.SampleCall.of(torch.Tensor.exp_, Sample(X))
    assert opinfo.is_within_roundings(call, (X.exp(), [X.exp()]), torch.float32, OpClass.POINTWISE)
    assert not opinfo.is_within_roundings(call, (X.exp(), [X]), torch.float32, OpClass.POINTWISE)


def test_other_numbers_in_half_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def sqrt(net: Network, self: Value) -> Value:
        return net.add(Unary(UnaryOp.EXP), self)

    use(monkeypatch, sqrt)
    found = opinfo.check("op", calls.SampleCall.of(torch.sqrt, Sample(X.half())), ("float16", 0), SETTINGS)
    assert found.outcome == "different"
