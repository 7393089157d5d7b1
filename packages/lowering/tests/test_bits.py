"""Bits of integers and signs of floats: equal to eager for every number that is special to them."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering_programs import Oracle, aten, guard_state, run, targets, whole
from torch.export import Dim

from torchkiln_core.call import OpCall
from torchkiln_lowering import AtenLowering
from torchkiln_lowering.decompositions.bits import _runs, both, either, one_of, shifted_left, shifted_right

T = torch.Tensor
INF, NAN = float("inf"), float("nan")
_MORE = """
remainder.Scalar floor_divide.default floor_divide.Scalar rsub.Scalar bitwise_not.default full_like.default reshape.default
index_select.default reciprocal.default floor.default
"""
INTEGERS = (torch.int32, torch.int64)
LOGIC: tuple[Callable[..., Any], ...] = (operator.and_, operator.or_, operator.xor)
SHIFTS: tuple[Callable[..., Any], ...] = (operator.lshift, operator.rshift)
DTYPES = pytest.mark.parametrize("dtype", INTEGERS, ids=lambda dtype: str(dtype).removeprefix("torch."))
NAMED = {"ids": lambda function: function.__name__}


def oracle() -> Oracle:
    return Oracle(*(getattr(getattr(aten, name.split(".")[0]), name.split(".")[1]) for name in _MORE.split()))


def special(dtype: torch.dtype) -> T:
    info = torch.iinfo(dtype)
    half = 1 << (info.bits // 2)
    return torch.tensor([info.min, info.min + 1, -half - 3, -255, -2, -1, 0, 1, 6, 170, half + 9, info.max - 1, info.max], dtype=dtype)


def agrees(compute: Callable[..., Any], *inputs: T, shapes: Any = None, again: tuple[T, ...] | None = None) -> None:
    """Checks values, dtype and shape for the inputs, and for others of a dynamic program."""
    # Of inputs that are views of each other's memory torch.export makes sizes symbolic.
    inputs = tuple(item.clone(memory_format=torch.preserve_format) for item in inputs)
    program = whole(compute, inputs, (shapes,) if shapes else None)
    guards = guard_state(program)
    lowered = AtenLowering().lower(program, oracle())
    assert guard_state(program) == guards
    sizes = {aten.sym_size.int}
    assert [call for call in targets(lowered) if isinstance(call, torch._ops.OpOverload) and call not in oracle().targets | sizes] == []
    for items in (inputs, *([again] if again else [])):
        torch.testing.assert_close(run(lowered, *items)[0], compute(*items), rtol=0, atol=0, equal_nan=True)


def masks(dtype: torch.dtype) -> tuple[int, ...]:
    info = torch.iinfo(dtype)
    return (0, 1, 2, 7, 0x55, 0xFF00, -1, -2, -8, info.max, info.min, info.max // 3, -(info.max // 3), 1 << (info.bits - 2), 0xF0F0F0F0)


@DTYPES
@pytest.mark.parametrize("logic", LOGIC, **NAMED)
def test_logic_with_a_number(logic: Callable[..., Any], dtype: torch.dtype) -> None:
    x = special(dtype)
    for mask in masks(dtype):
        agrees(lambda x, mask=mask: logic(x, mask), x)
    agrees(lambda x: logic(5, x), x)
    agrees(lambda x: logic(x, True), x)


@DTYPES
@pytest.mark.parametrize("logic", LOGIC, **NAMED)
def test_logic_of_tensors(logic: Callable[..., Any], dtype: torch.dtype) -> None:
    x = special(dtype)
    agrees(logic, x[:, None], x)
    agrees(logic, x.reshape(1, 1, 1, 13).expand(2, 1, 3, 13).transpose(0, 3), x[2])
    agrees(logic, x[:0], x[:1])
    agrees(logic, x[3], x[-1])
    agrees(logic, x.reshape(1, 1, 1, 1, 1, 1, 13), x)


@DTYPES
@pytest.mark.parametrize("shift", SHIFTS, **NAMED)
def test_shifts_by_a_number(shift: Callable[..., Any], dtype: torch.dtype) -> None:
    """A count outside of the width has a meaning in ATen, where it has none in C; a number wraps to the dtype."""
    x, bits = special(dtype), torch.iinfo(dtype).bits
    for places in (0, 1, 3, bits - 2, bits - 1, bits, bits + 1, -1, -bits, True, (1 << 32) + 1):
        agrees(lambda x, places=places: shift(x, places), x)
    for number in (0, 5, -5, torch.iinfo(dtype).min):
        agrees(lambda x, number=number: shift(number, x), torch.arange(-3, bits + 3, dtype=dtype))


@DTYPES
@pytest.mark.parametrize("shift", SHIFTS, **NAMED)
def test_shifts_by_a_tensor(shift: Callable[..., Any], dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    places = torch.cat([torch.arange(-3, info.bits + 3), torch.tensor([info.min, info.max])]).to(dtype)
    x = special(dtype)
    agrees(shift, x[:, None], places)
    agrees(shift, x, places[5])
    agrees(shift, x[0], places)
    agrees(shift, x[0], places[9])
    agrees(shift, x.reshape(1, 1, 1, 1, 1, 1, 1, 13), places[9:10])
    agrees(shift, x[:0], places[:1])


OVERLOADS: dict[str, Callable[[T], Any]] = {
    "shift by a number": lambda x: torch.bitwise_left_shift(x, 3),
    "shift of a number": lambda x: torch.bitwise_right_shift(-9, x),
    "shift of tensors": lambda x: torch.bitwise_right_shift(x, x),
    "promoted": lambda x: x.int() & x,
    "promoted of 0-d": lambda x: x.int() | x[3],
    "bytes": lambda x: x.to(torch.uint8) ^ x,
    "truth values and numbers": lambda x: (x > 0) & x,
    "truth values and a number": lambda x: (x > 0) | 6,
}


@pytest.mark.parametrize("name", OVERLOADS)
def test_overloads_and_promotion(name: str) -> None:
    x = torch.arange(-5, 9)
    program = whole(OVERLOADS[name], (x,))
    lowered = AtenLowering().lower(program, oracle())
    assert [call for call in targets(lowered) if call not in oracle().targets] == []
    torch.testing.assert_close(run(lowered, x)[0], OVERLOADS[name](x), rtol=0, atol=0)


@pytest.mark.parametrize("logic", LOGIC, **NAMED)
def test_truth_values_reach_logic(logic: Callable[..., Any]) -> None:
    names = {operator.and_: "bitwise_and", operator.or_: "bitwise_or", operator.xor: "bitwise_xor"}
    packet = getattr(aten, names[logic])
    x = torch.tensor([True, False])
    accepting = Oracle(packet.Tensor, packet.Scalar)
    for compute in (lambda x: logic(x, x), lambda x: logic(x, True), lambda x: packet.Scalar_Tensor(True, x)):
        lowered = AtenLowering().lower(whole(compute, (x,)), accepting)
        assert [call for call in targets(lowered) if call not in (packet.Tensor, packet.Scalar, aten.clone.default)] == []
        assert torch.equal(run(lowered, x)[0], compute(x))


@DTYPES
@pytest.mark.parametrize("function", [*LOGIC, *SHIFTS], **NAMED)
def test_sizes_may_be_dynamic(function: Callable[..., Any], dtype: torch.dtype) -> None:
    x = special(dtype)
    n = Dim("n", min=2, max=64)
    agrees(lambda x: function(x, 5), x, shapes=({0: n},), again=(torch.cat([x, x]),))
    agrees(function, x, x.flip(0), shapes=({0: n}, {0: n}), again=(torch.cat([x, x]), torch.cat([x.flip(0), x])))


STAY: dict[str, tuple[Callable[..., Any], tuple[T, ...]]] = {
    "bytes": (lambda x: x & 7, (torch.arange(4, dtype=torch.uint8),)),
    "short integers": (lambda x: x << 1, (torch.arange(4, dtype=torch.int16),)),
    "tensors of rank 8": (lambda x: x & x.flip(7), (torch.arange(4).reshape(1, 1, 1, 1, 1, 1, 1, 4),)),
    "large tensors": (lambda x, y: x | y, (torch.zeros(2048, 1, dtype=torch.int64), torch.zeros(2048, dtype=torch.int64))),
}


@pytest.mark.parametrize("name", STAY)
def test_what_stays_in_torch(name: str) -> None:
    compute, inputs = STAY[name]
    lowered = AtenLowering().lower(whole(compute, inputs), oracle())
    assert any(str(call).split(".")[1] in ("bitwise_and", "bitwise_or", "__and__", "__lshift__", "__or__") for call in targets(lowered))
    assert torch.equal(run(lowered, *inputs)[0], compute(*inputs))


def test_a_symbolic_number_stays_in_torch() -> None:
    program = whole(lambda x: x & x.shape[0], (torch.arange(4),), (({0: Dim("n", min=2, max=64)},),))
    lowered = AtenLowering().lower(program, oracle())
    calls = [OpCall.from_node(node) for node in lowered.module.graph.nodes if "and" in str(node.target) and "sym" not in str(node.target)]
    assert calls != []
    x = torch.arange(9)
    assert torch.equal(run(lowered, x)[0], x & 9)


WORDS = st.integers(-(1 << 63), (1 << 63) - 1)


@settings(max_examples=60, deadline=None)
@given(WORDS, WORDS, st.integers(-2, 66))
def test_any_words(left: int, right: int, places: int) -> None:
    a, b, count = torch.tensor([left]), torch.tensor([right]), torch.tensor([places])
    assert both(a, b).item() == both(a, right).item() == left & right
    assert either(a, b).item() == either(a, right).item() == left | right
    assert one_of(a, b).item() == one_of(a, right).item() == left ^ right
    assert torch.equal(shifted_left(a, count), a << count)
    assert torch.equal(shifted_right(a, places), a >> places)


@given(st.integers(0, (1 << 63) - 1))
def test_runs_of_a_mask(mask: int) -> None:
    runs = list(_runs(mask))
    assert sum((1 << stop) - (1 << start) for start, stop in runs) == mask
    assert all(first[1] < second[0] for first, second in itertools.pairwise(runs))


FLOATS = (torch.float32, torch.float16, torch.bfloat16)
SIGNED = torch.tensor([0.0, -0.0, 1.5, -1.5, INF, -INF, NAN, 1e-7, -1e-7, 1e-40, -1e-40])
SIGNS: dict[str, Callable[..., Any]] = {
    "signbit": torch.signbit,
    "signbit of integers": lambda x: torch.signbit(x.nan_to_num(0, 1, -1).int()),
    "signbit of truth values": lambda x: torch.signbit(x > 0),
    "copysign": lambda x: torch.copysign(x[:, None], x),
    "copysign of a number": lambda x: torch.copysign(x, 2.0),
    "copysign of zero": lambda x: torch.copysign(x, -0.0),
    "copysign of integers": lambda x: torch.copysign((x > 0).int(), (x < 0).long() - 1),
    "copysign of an integer": lambda x: torch.copysign((x > 0).long() + 1, -1),
    "copysign promoted": lambda x: torch.copysign(x, x.double().float()[:1]),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("name", SIGNS)
def test_signs(name: str, dtype: torch.dtype) -> None:
    # A conversion of NaN to a half dtype may set its sign, which this makes positive again.
    x = SIGNED.to(dtype)
    x = torch.where(x.isnan(), torch.full_like(x, NAN).abs(), x)
    want = SIGNS[name](x)
    (got,) = run(AtenLowering().lower(whole(SIGNS[name], (x,)), oracle()), x)
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    numbers = ~want.isnan()
    assert torch.equal(torch.signbit(got)[numbers], torch.signbit(want)[numbers])


def test_signs_are_decomposed() -> None:
    agrees(torch.signbit, SIGNED, shapes=({0: Dim("n", min=2, max=64)},), again=(torch.cat([SIGNED, SIGNED]),))
    agrees(torch.copysign, SIGNED, SIGNED.flip(0))


def test_erfc_keeps_every_digit_of_its_tail() -> None:
    x = torch.cat([torch.linspace(-6, 9.15, 20000), torch.logspace(-30, 0, 100), -torch.logspace(-30, 0, 100)])
    lowered = AtenLowering().lower(whole(torch.erfc, (x,)), oracle())
    assert [call for call in targets(lowered) if call not in oracle().targets] == []
    (got,), exact = run(lowered, x), torch.erfc(x.double())
    assert ((got.double() - exact) / exact).abs().max() < 1e-6


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("function", [torch.erfc, torch.special.erfc], ids=["erfc", "special_erfc"])
def test_erfc_of_special_numbers(function: Callable[..., Any], dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, -0.0, INF, -INF, NAN, 3.4e38, -3.4e38, 20.0, -20.0, 10.06, 11.0, 9.5, 5.0, -5.0, 1e-40]).to(dtype)
    lowered = AtenLowering().lower(whole(function, (x,)), oracle())
    (got,), want = run(lowered, x), function(x.double()).to(dtype)
    # Results without all their digits: subnormal numbers of float32.
    torch.testing.assert_close(got, want, rtol=torch.finfo(dtype).eps * 8, atol=1e-42, equal_nan=True)


def test_erfc_of_integers_and_of_dynamic_sizes() -> None:
    x = torch.arange(-4, 9)
    lowered = AtenLowering().lower(whole(torch.erfc, (x,)), oracle())
    torch.testing.assert_close(run(lowered, x)[0], torch.erfc(x), rtol=2e-6, atol=0)
    y = torch.linspace(-3, 3, 6).reshape(3, 2)
    lowered = AtenLowering().lower(whole(torch.erfc, (y,), (({0: Dim("n", min=2, max=64)},),)), oracle())
    y = torch.cat([y, y])
    torch.testing.assert_close(run(lowered, y)[0], torch.erfc(y), rtol=2e-6, atol=0)
