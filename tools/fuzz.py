"""Makes up programs and compares what torchkiln makes of them with eager PyTorch.

    python tools/fuzz.py --programs 500 [--seed 1] [--rounds 20] [--build] [--capture dynamic] [--json fuzz.json]

A program has 3 to 30 calls over tensors of random shapes and dtypes: those of ``fuzz_calls.py`` and ``fuzz_layers.py``, among them edits in
place of values, of views of them and of arguments. Values are shared, and several are returned, or all that no other call reads. Results,
what became of the arguments, and the structure must equal eager's. A program that does not is shrunk and printed, so that it can be kept
as a test.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import fuzz_calls
import fuzz_layers
import torch
from fuzz_calls import IN_PLACE, Binary, Unary
from fuzz_rounds import arguments_of, options_of, run_rounds
from hypothesis import strategies as st
from opinfo_call import Capture, NotCaptured, SampleCall, compile_call

from torchkiln import Report
from torchkiln_testing import OpClass, assert_same

T = torch.Tensor
UNARY: Mapping[str, Unary] = {**fuzz_calls.UNARY, **fuzz_layers.UNARY}
BINARY: Mapping[str, Binary] = {**fuzz_calls.BINARY, **fuzz_layers.BINARY}
SHAPES = ((3, 4), (4,), (1, 4), (2, 3, 4), (3, 1), ())
DTYPES = (torch.float32, torch.int64, torch.int32, torch.bool)


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
            made.append(whole % 3 == 0 if dtype is torch.bool else whole / 4 if dtype.is_floating_point else whole.to(dtype))
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
    returned = {*draw(st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=3, unique=True)), len(values) - 1}
    if draw(st.booleans()):
        returned |= {*range(len(arguments), len(values))}.difference(*(step.operands for step in steps))
    return FuzzProgram(arguments, tuple(steps), tuple(sorted(returned)))


def _attempt(step: Step, values: Sequence[T]) -> T | None:
    """The result, where eager takes the call and it is of moderate size."""
    operands = [values[index] for index in step.operands]
    if step.name in IN_PLACE and (_overlaps(operands[0]) or _shares(*operands)):
        return None
    with warnings.catch_warnings(action="ignore"), contextlib.suppress(RuntimeError, IndexError, ValueError):
        # On copies first: a call that fails on its way has written by then.
        result = step.run({index: values[index].clone() for index in step.operands})
        return step.run(values) if result.numel() <= 1000 and result.dim() <= 5 else None
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
