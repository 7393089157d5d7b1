"""Makes up programs and compares what torchkiln makes of them with eager PyTorch.

    python tools/fuzz.py --programs 500 [--seed 1] [--rounds 20] [--build] [--capture dynamic] [--json fuzz.json]

A program has 3 to 30 calls over tensors of random shapes and dtypes: arithmetic, reductions, views, joins, indices, and in-place edits of
values, of views of them and of arguments. Values are shared, and several are returned. Results, what became of the arguments, and the
structure must equal eager's. A program that does not is shrunk and printed, so that it can be kept as a test.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fuzz_rounds import arguments_of, options_of, run_rounds
from hypothesis import strategies as st
from opinfo_call import Capture, NotCaptured, SampleCall, compile_call

from torchkiln import Report
from torchkiln_testing import OpClass, assert_same

T = torch.Tensor
SHAPES = ((3, 4), (4,), (1, 4), (2, 3, 4), (3, 1), ())
DTYPES = (torch.float32, torch.int64, torch.bool)
_LIMIT = 3.0


def _float(x: T) -> T:
    return x if x.is_floating_point() else x.to(torch.float32)


def _number(x: T) -> T:
    return x.to(torch.int64) if x.dtype is torch.bool else x


def _bounded(x: T) -> T:
    """Keeps numbers small, so that no rounding grows and no integer overflows."""
    return _number(x).clamp(-64, 64)


def _write(x: T, value: T) -> T:
    x.copy_(value.expand(x.shape).to(x.dtype))
    return x


def _add_in_place(x: T, y: T) -> T:
    return x.logical_xor_(y.expand(x.shape).bool()) if x.dtype is torch.bool else x.add_(y.expand(x.shape).to(x.dtype))


UNARY: Mapping[str, Callable[[T], T]] = {
    "neg": lambda x: -_number(x),
    "abs": lambda x: _number(x).abs(),
    "relu": lambda x: torch.relu(_number(x)),
    "tanh": lambda x: torch.tanh(_float(x)),
    "exp": lambda x: torch.exp(_float(x).clamp(-_LIMIT, _LIMIT)),
    "sigmoid": lambda x: torch.sigmoid(_float(x)),
    "gelu": lambda x: torch.nn.functional.gelu(_float(x)),
    "log1p": lambda x: torch.log1p(_float(x).abs()),
    "to float": lambda x: x.to(torch.float32),
    "to int": lambda x: (_float(x) * 4).clamp(-64, 64).to(torch.int32).to(torch.int64) if not x.is_floating_point() else _number(x > 0.37),
    "positive": lambda x: _number(x) > 0,
    "softmax": lambda x: torch.softmax(_float(x), -1),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(_float(x), x.shape[-1:]) if x.dim() else _float(x),
    "cumsum": lambda x: torch.cumsum(_bounded(x), 0),
    "sum": lambda x: _bounded(x).sum(-1, keepdim=True) if x.dim() else _number(x),
    "sum all": lambda x: _bounded(x).sum(),
    "mean": lambda x: _float(x).mean(0) if x.dim() else _float(x),
    "amax": lambda x: _number(x).amax(-1) if x.dim() else _number(x),
    "any": lambda x: x.any(-1) if x.dim() else x.bool(),
    "transpose": lambda x: x.transpose(0, -1) if x.dim() else x,
    "flatten": lambda x: x.reshape(-1),
    "view": lambda x: x.reshape(1, *x.shape),
    "unsqueeze": lambda x: x.unsqueeze(-1),
    "squeeze": lambda x: x.squeeze(),
    "select": lambda x: x.select(0, -1),
    "slice": lambda x: x[1:],
    "step": lambda x: x[..., ::2],
    "narrow": lambda x: x.narrow(-1, 0, max(x.shape[-1] - 1, 1)),
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, -1),
    "expand": lambda x: x.expand(2, *x.shape),
    "diagonal": lambda x: x.diagonal(),
    "split": lambda x: torch.split(x, 2)[-1],
    "unbind": lambda x: x.unbind(0)[0],
    "pad": lambda x: torch.nn.functional.pad(_number(x), (1, 0)),
    "clone": lambda x: x.clone(),
    "zero_": lambda x: x.zero_(),
    "fill_": lambda x: x.fill_(1),
    "relu_": lambda x: x.relu_() if x.dtype is not torch.bool else x.logical_not_(),
    "mul_": lambda x: x.mul_(2).clamp_(-64, 64) if x.dtype is not torch.bool else x.logical_and_(x),
    "write row": lambda x: _write(x[0], x[-1]),
    "increment slice": lambda x: _add_in_place(x[..., :1], x[..., -1:]),
}
BINARY: Mapping[str, Callable[[T, T], T]] = {
    "add": lambda x, y: _bounded(x) + _bounded(y),
    "sub": lambda x, y: _bounded(x) - _bounded(y),
    "mul": lambda x, y: _bounded(x) * _bounded(y),
    "div": lambda x, y: _float(x) / (_float(y).abs() + 1),
    "floor_divide": lambda x, y: _bounded(x).to(torch.int64) // (y.bool().to(torch.int64) * 3 - 5) if not x.is_floating_point() else x,
    "maximum": lambda x, y: torch.maximum(_number(x), _number(y)),
    "where": lambda x, y: torch.where(x.bool() if x.dtype is torch.bool else x > 0.37, y, torch.zeros_like(y)),
    "equal": lambda x, y: x == y if not (x.is_floating_point() or y.is_floating_point()) else x > 0.37,
    "and": lambda x, y: x.bool() & y.bool() if x.dtype is torch.bool else _number(x),
    "cat": lambda x, y: torch.cat([x, y.to(x.dtype)], 0),
    "stack": lambda x, y: torch.stack([x, y.to(x.dtype)]),
    "matmul": lambda x, y: torch.tanh(_float(x)) @ torch.tanh(_float(y)),
    "gather": lambda x, y: x.index_select(0, (y.reshape(-1)[:3].bool()).to(torch.int64)),
    "masked_fill": lambda x, y: x.masked_fill(y.bool() if y.dtype is torch.bool else y > 0.37, 0),
    "copy_": _write,
    "add_": _add_in_place,
}
IN_PLACE = frozenset({"zero_", "fill_", "relu_", "mul_", "write row", "increment slice", "copy_", "add_"})


@dataclass(frozen=True, slots=True)
class Step:
    """One call on values by number: the arguments come first, then the results of earlier steps."""

    name: str
    operands: tuple[int, ...]

    def run(self, values: Sequence[T] | Mapping[int, T]) -> T:
        """The result of the call."""
        operands = [values[index] for index in self.operands]
        return BINARY[self.name](*operands) if self.name in BINARY else UNARY[self.name](*operands)


@dataclass(frozen=True, slots=True)
class FuzzProgram:
    """Arguments by shape and dtype, calls in order, and the numbers of the values returned."""

    arguments: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    steps: tuple[Step, ...]
    returned: tuple[int, ...]

    def __call__(self, *arguments: T) -> dict[str, list[T]]:
        """Runs the calls."""
        values = list(arguments)
        for step in self.steps:
            values.append(step.run(values))
        return {"results": [values[index] for index in self.returned]}

    def example(self) -> list[T]:
        """Arguments of exact small numbers."""
        made = []
        for number, (shape, dtype) in enumerate(self.arguments):
            count = int(torch.Size(shape).numel())
            whole = ((torch.arange(count) * 7 + 3 * number) % 23 - 11).reshape(shape)
            made.append(whole % 3 == 0 if dtype is torch.bool else whole / 4 if dtype.is_floating_point else whole)
        return made


@st.composite
def programs(draw: Callable[[Any], Any]) -> FuzzProgram:
    """Programs that eager PyTorch runs; a call that it refuses gives way to the next that it takes."""
    arguments = tuple(draw(st.lists(st.tuples(st.sampled_from(SHAPES), st.sampled_from(DTYPES)), min_size=1, max_size=3)))
    values = FuzzProgram(arguments, (), ()).example()
    names = sorted([*UNARY, *BINARY])
    steps: list[Step] = []
    for first in draw(st.lists(st.integers(0, len(names) - 1), min_size=3, max_size=30)):
        operands = tuple(draw(st.integers(0, len(values) - 1)) for _ in range(2))
        for name in (*names[first:], *names[:first]):
            step = Step(name, operands[: 1 + (name in BINARY)])
            result = _attempt(step, values)
            if result is not None:
                values.append(result)
                steps.append(step)
                break
    returned = draw(st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=3, unique=True))
    return FuzzProgram(arguments, tuple(steps), tuple({*returned, len(values) - 1}))


def _attempt(step: Step, values: Sequence[T]) -> T | None:
    """The result, where eager takes the call and it is of moderate size."""
    operands = [values[index] for index in step.operands]
    if step.name in IN_PLACE and (_overlaps(operands[0]) or _shares(*operands)):
        return None
    try:
        # On copies first: a call that fails on its way has written by then.
        result = step.run({index: values[index].clone() for index in step.operands})
        return step.run(values) if result.numel() <= 1000 and result.dim() <= 5 else None
    except (RuntimeError, IndexError, ValueError):
        return None


def _overlaps(x: T) -> bool:
    """Whether several elements share memory, so that eager refuses to write."""
    return any(size > 1 and stride == 0 for size, stride in zip(x.shape, x.stride(), strict=True))


def _shares(written: T, read: T | None = None) -> bool:
    """Whether elements are read that were written as others before, so that the result depends on the order of writes."""
    if read is None or written.untyped_storage().data_ptr() != read.untyped_storage().data_ptr():
        return False
    size = written.untyped_storage().nbytes() // written.element_size()
    places = [torch.arange(size).as_strided(x.shape, x.stride(), x.storage_offset()).contiguous() for x in (written, read)]
    return bool(torch.isin(*places).any()) and (written.shape != read.shape or not torch.equal(*places))


@dataclass(frozen=True, slots=True)
class Sample:
    """What ``SampleCall.of`` reads."""

    input: T
    args: tuple[T, ...]
    kwargs: dict[str, Any]


def check(program: FuzzProgram, options: Mapping[str, Any], capture: Capture = Capture.STATIC) -> list[Report] | None:
    """Raises unless the compiled program equals eager; the reports of its graphs, or ``None`` where torch cannot capture it."""
    first, *rest = program.example()
    call = SampleCall.of(program, Sample(first, tuple(rest), {}))
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):
        expected = call.eager()
        try:
            compiled = compile_call(call, options, capture)
        except NotCaptured:
            return None
        got = compiled()
    assert_same(expected, got, OpClass.MODEL)
    return compiled.reports


def main(given: Sequence[str] | None = None) -> int:
    """Exit status 1 when a program fails."""
    parser = arguments_of(__doc__)
    parser.add_argument("--capture", default="static", choices=[item.value for item in Capture])
    chosen = parser.parse_args(given)
    return run_rounds(programs(), functools.partial(check, options=options_of(chosen), capture=Capture(chosen.capture)), chosen)


if __name__ == "__main__":
    raise SystemExit(main())
