"""Makes up programs of shape operations and compares them with eager PyTorch at many sizes, compiled once.

    python tools/fuzz_sizes.py --programs 200 --rounds 10 [--seed 1] [--build] [--engine tensorrt] [--json sizes.json]

A program has 2 to 12 calls over tensors with the dynamic sizes ``b`` and ``s`` (and ``2 * s``), which its own calls turn into others:
``s // 2``, ``s % 3``, the size of what a mask leaves. It is exported once, at the typical sizes, and runs at the smallest, the largest,
and some between. A program whose results differ is shrunk and printed, so that it can be kept as a test.
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
from torch.export import Dim

import torchkiln
from torchkiln.size_questions import export_asking_less
from torchkiln_core import ExportError
from torchkiln_testing import OpClass, assert_same

T = torch.Tensor
F = torch.nn.functional
TYPICAL = (3, 5)
SIZES = ((3, 5), (2, 2), (6, 11), (5, 7), (1, 1), (1, 4), (4, 1))
"""``b`` and ``s``: the typical ones, the smallest and largest, and others; 1 is a size as any other."""
LARGEST = (6, 11)

NUMBERS: Mapping[str, Callable[[int], Any]] = {
    "n": lambda n: n,
    "n // 2": lambda n: n // 2,
    "(n + 1) // 2": lambda n: (n + 1) // 2,
    "n - 1": lambda n: n - 1,
    "n + 3": lambda n: n + 3,
    "2 * n": lambda n: 2 * n,
    "n % 3": lambda n: n % 3,
    "n * n": lambda n: n * n,
    "max(n, 4)": lambda n: torch.sym_max(n, 4),
    "min(n, 2)": lambda n: torch.sym_min(n, 2),
    "2": lambda n: 2,
}
"""What a call makes of a size that it reads."""
Number = Callable[[int], Any]


def _float(x: T) -> T:
    return x if x.is_floating_point() else x.to(torch.float32)


def _index(x: T, limit: int) -> T:
    """``[n]`` indices below ``limit``."""
    return x.reshape(-1).to(torch.int64).abs() % limit


def _pool(x: T, kind: Callable[..., T]) -> T:
    return kind(_float(x).reshape(1, 1, -1), 2, 1, 1)


UNARY: Mapping[str, Callable[[T, Number], T]] = {
    "flatten": lambda x, f: x.reshape(-1),
    "flatten two": lambda x, f: x.flatten(0, 1),
    "view rows": lambda x, f: x.reshape(x.shape[0], -1),
    "view last": lambda x, f: x.reshape(-1, x.shape[-1]),
    "view merged": lambda x, f: x.reshape(x.shape[0] * x.shape[1], -1),
    "view halves": lambda x, f: x.reshape(*x.shape[:-1], 2, x.shape[-1] // 2),
    "unflatten": lambda x, f: torch.unflatten(x, -1, (-1, 2)),
    "unsqueeze": lambda x, f: x.unsqueeze(0),
    "squeeze": lambda x, f: x.unsqueeze(-1).squeeze(-1),
    "expand": lambda x, f: x.unsqueeze(0).expand(f(x.shape[0]), *x.shape),
    "expand last": lambda x, f: x.unsqueeze(-1).expand(*x.shape, f(x.shape[-1])),
    "repeat": lambda x, f: x.repeat(2, *[1] * (x.dim() - 1)),
    "repeat often": lambda x, f: x.repeat(f(x.shape[0]), *[1] * (x.dim() - 1)),
    "tile": lambda x, f: x.tile(2),
    "transpose": lambda x, f: x.transpose(0, -1),
    "permute": lambda x, f: x.permute(*range(1, x.dim()), 0),
    "flip": lambda x, f: x.flip(0),
    "roll": lambda x, f: x.roll(1, -1),
    "take front": lambda x, f: x[: f(x.shape[0])],
    "take back": lambda x, f: x[..., -f(x.shape[-1]) :],
    "drop back": lambda x, f: x[: -f(x.shape[0])],
    "step": lambda x, f: x[..., 1::2],
    "last row": lambda x, f: x[-1],
    "narrow": lambda x, f: x.narrow(0, 0, torch.sym_min(f(x.shape[0]), x.shape[0])),
    "narrow end": lambda x, f: x.narrow(-1, x.shape[-1] // 2, x.shape[-1] - x.shape[-1] // 2),
    "chunk": lambda x, f: x.chunk(2, 0)[0],
    "split": lambda x, f: torch.split(x, [2, x.shape[-1] - 2], -1)[1],
    "unfold": lambda x, f: x.unfold(-1, 2, 1),
    "pad": lambda x, f: F.pad(x, (f(x.shape[-1]), 1)),
    "pad rows": lambda x, f: F.pad(x, (0, 0, 1, f(x.shape[0]))),
    "crop": lambda x, f: F.pad(x, (-1, 0)),
    "arange": lambda x, f: torch.arange(f(x.shape[0])),
    "arange scaled": lambda x, f: x + torch.arange(x.shape[-1]).to(x.dtype) * 2,
    "linspace": lambda x, f: x * torch.arange(x.shape[0]).to(x.dtype).reshape(-1, *[1] * (x.dim() - 1)),
    "full": lambda x, f: torch.full((f(x.shape[0]), x.shape[-1]), 2.0),
    "zeros_like": lambda x, f: torch.zeros_like(x),
    "ones": lambda x, f: x.new_ones((x.shape[-1], f(x.shape[0]))),
    "triangle": lambda x, f: x.tril(),
    "diagonal": lambda x, f: x.diagonal(),
    "times size": lambda x, f: x * f(x.shape[0]),
    "over size": lambda x, f: _float(x) / (f(x.shape[-1]) + 1),
    "mean": lambda x, f: _float(x).mean(0),
    "sum keeps": lambda x, f: x.sum(-1, keepdim=True),
    "cumsum": lambda x, f: x.cumsum(-1) / 2,
    "softmax": lambda x, f: torch.softmax(_float(x), -1),
    "largest": lambda x, f: x.amax(0),
    "where largest": lambda x, f: x.argmax(-1),
    "sort": lambda x, f: x.sort(-1).values,
    "topk": lambda x, f: x.topk(torch.sym_min(f(x.shape[-1]), x.shape[-1]), -1).values,
    "layer_norm": lambda x, f: F.layer_norm(_float(x), x.shape[-1:]),
    "resize": lambda x, f: F.interpolate(_float(x).reshape(1, x.shape[0], -1), size=f(x.shape[0]) + 1),
    "resize linear": lambda x, f: F.interpolate(_float(x).reshape(1, 1, -1), scale_factor=2.0, mode="linear"),
    "conv": lambda x, f: F.conv1d(_float(x).reshape(1, 1, -1), torch.ones(2, 1, 3), padding=1),
    "max_pool": lambda x, f: _pool(x, F.max_pool1d),
    "avg_pool": lambda x, f: _pool(x, F.avg_pool1d),
    "one_hot": lambda x, f: F.one_hot(_index(x, 4), 4),
    "embedding": lambda x, f: F.embedding(_index(x, 5), torch.arange(10.0).reshape(5, 2)),
    "relu": lambda x, f: torch.relu(x),
    "tanh": lambda x, f: torch.tanh(_float(x)),
}
BINARY: Mapping[str, Callable[[T, T, Number], T]] = {
    "add": lambda x, y, f: x + y,
    "outer": lambda x, y, f: x.reshape(-1, 1) * y.reshape(1, -1),
    "cat": lambda x, y, f: torch.cat([x, y.to(x.dtype)], 0),
    "cat last": lambda x, y, f: torch.cat([x, y.to(x.dtype)], -1),
    "stack": lambda x, y, f: torch.stack([x, y.to(x.dtype)]),
    "matmul": lambda x, y, f: torch.tanh(_float(x)) @ torch.tanh(_float(y)),
    "gram": lambda x, y, f: torch.tanh(_float(x)) @ torch.tanh(_float(x)).transpose(-1, -2),
    "attention": lambda x, y, f: F.scaled_dot_product_attention(_float(x), _float(x), _float(x)),
    "einsum": lambda x, y, f: torch.einsum("...a,...b->...ab", _float(x), _float(x)),
    "where": lambda x, y, f: torch.where(x > 0, x, y.to(x.dtype)),
    "index_select": lambda x, y, f: x.index_select(0, _index(y, x.shape[0])),
    "index": lambda x, y, f: x[_index(y, x.shape[0])],
    "gather": lambda x, y, f: x.gather(-1, _index(x, x.shape[-1]).reshape(x.shape)),
    # Of places that are written twice, a GPU keeps any value.
    "scatter": lambda x, y, f: torch.zeros_like(x).scatter(-1, at := _index(x, x.shape[-1]).reshape(x.shape), (at + 1).to(x.dtype)),
    "like": lambda x, y, f: x.reshape(-1)[: y.shape[0]],
    "expand_as": lambda x, y, f: x.reshape(-1)[:1].expand_as(y),
    "reshape as": lambda x, y, f: x.reshape(y.shape[0], -1),
}
DATA: Mapping[str, Callable[[T, Number], T]] = {
    "nonzero": lambda x, f: x.nonzero(),
    "mask": lambda x, f: x[x > 0],
    "masked rows": lambda x, f: x[x.reshape(x.shape[0], -1).sum(-1) > 0],
    "unique": lambda x, f: torch.unique(x),
    "repeat_interleave": lambda x, f: torch.repeat_interleave(x.reshape(-1), _index(x, 3)),
    "item": lambda x, f: x * x.reshape(-1)[0].item(),
    "argwhere": lambda x, f: torch.argwhere(x > 1),
}
"""Calls whose result has a size that depends on data."""


@dataclass(frozen=True, slots=True)
class SizeStep:
    """One call on values by number, with what it makes of the size that it reads."""

    name: str
    operands: tuple[int, ...]
    number: str

    def run(self, values: Sequence[T]) -> T:
        """The result of the call."""
        calls: Mapping[str, Callable[..., T]] = BINARY if self.name in BINARY else UNARY if self.name in UNARY else DATA
        return calls[self.name](*(values[index] for index in self.operands), NUMBERS[self.number])


@dataclass(frozen=True, slots=True)
class SizeProgram:
    """Calls in order on ``x [b, s, 4]``, ``y [s, 4]``, ``z [2 * s, b]`` and ``i [b]``; the last result is returned, and others."""

    steps: tuple[SizeStep, ...]
    returned: tuple[int, ...]

    def __call__(self, x: T, y: T, z: T, i: T) -> list[T]:
        """Runs the calls."""
        values = [x, y, z, i]
        for step in self.steps:
            values.append(step.run(values))
        return [values[index] for index in self.returned]

    def shorter(self) -> SizeProgram | None:
        """The first half of the calls, with the result of the last of them."""
        steps = self.steps[: len(self.steps) // 2]
        return SizeProgram(steps, (3 + len(steps),)) if steps else None


def arguments(sizes: tuple[int, int]) -> tuple[T, ...]:
    """Small exact numbers for given ``b`` and ``s``."""
    b, s = sizes
    made = []
    shapes = ((b, s, 4), (s, 4), (2 * s, b), (b,))
    for number, (shape, dtype) in enumerate(zip(shapes, (torch.float32, torch.float32, torch.float32, torch.int64), strict=True)):
        count = int(torch.Size(shape).numel())
        whole = ((torch.arange(count) * 7 + 3 * number) % 23 - 11).reshape(shape)
        made.append(whole / 4 if dtype.is_floating_point else whole)
    return tuple(made)


@st.composite
def size_programs(draw: Callable[[Any], Any], names: Sequence[str] = tuple(sorted([*UNARY, *BINARY, *DATA]))) -> SizeProgram:
    """Programs that eager PyTorch runs at the typical sizes; a call that it refuses is left out."""
    values = list(arguments(TYPICAL))
    steps: list[SizeStep] = []
    for name in draw(st.lists(st.sampled_from(names), min_size=2, max_size=12)):
        operands = tuple(draw(st.integers(0, len(values) - 1)) for _ in range(1 + (name in BINARY)))
        step = SizeStep(name, operands, draw(st.sampled_from(sorted(NUMBERS))))
        result = _attempt(step, values)
        if result is not None:
            values.append(result)
            steps.append(step)
    more = draw(st.lists(st.integers(0, len(values) - 1), max_size=2, unique=True))
    return SizeProgram(tuple(steps), tuple(dict.fromkeys([*more, len(values) - 1])))


def _attempt(step: SizeStep, values: Sequence[T]) -> T | None:
    """The result, where eager takes the call and it is of moderate size."""
    try:
        result = step.run(values)
    except (RuntimeError, IndexError, ValueError, TypeError):
        return None
    return result if result.numel() <= 4000 and result.dim() <= 5 else None


class _Module(torch.nn.Module):
    def __init__(self, program: SizeProgram) -> None:
        super().__init__()
        self.program = program

    def forward(self, x: T, y: T, z: T, i: T) -> list[T]:
        return self.program(x, y, z, i)


def check(program: SizeProgram, options: Mapping[str, Any], device: str = "cpu") -> list[torchkiln.Report] | None:
    """Raises where a result differs; the report, or ``None`` where torch cannot export even the first call for every size.

    Of a program that torch cannot export, the first half is tried.
    """
    module = _Module(program)
    with torch.no_grad(), warnings.catch_warnings(action="ignore"), torch.device(device):
        try:
            compiled = torchkiln.compile(module, arguments(TYPICAL), dynamic_shapes=_shapes(), **options)
        except ExportError:
            shorter = program.shorter()
            return None if shorter is None else check(shorter, options, device)
        for sizes in SIZES:
            _compare(module, compiled, sizes)
    return [compiled.report]


def _shapes() -> tuple[dict[int, Any], ...]:
    b, s = (Dim(name, min=1, max=high) for name, high in zip("bs", LARGEST, strict=True))
    return {0: b, 1: s}, {0: s}, {0: 2 * s, 1: b}, {0: b}


def _compare(module: _Module, compiled: torchkiln.CompiledModule, sizes: tuple[int, int]) -> None:
    """Raises where the results for some sizes differ."""
    given = arguments(sizes)
    try:
        with torch.device("cpu"):
            # An index that is refused here stops a GPU for good.
            module(*arguments(sizes))
        expected = module(*given)
    except (RuntimeError, IndexError, ValueError, TypeError):
        # Another error, at most, may come of a size that eager refuses.
        return
    try:
        assert_same(expected, compiled(*given), OpClass.MODEL)
    except torchkiln.ShapeOutOfProfile as error:
        # The program may be right for some sizes only, which torch found out while it exported it.
        if "while it was captured" not in str(error):
            raise AssertionError(f"sizes {sizes}: {error}") from error
    except Exception as error:
        if "Runtime assertion failed" in str(error) and _torch_refuses(module, sizes):
            return
        error.add_note(f"sizes {sizes}")
        raise


def _torch_refuses(module: _Module, sizes: tuple[int, int]) -> bool:
    """Whether torch's own program fails: what it assumed of sizes that depend on data does not hold."""
    export = functools.partial(torch.export.export, module, arguments(TYPICAL), dynamic_shapes=_shapes(), strict=False)
    exported = export_asking_less(export).module()
    try:
        exported(*arguments(sizes))
    except RuntimeError as error:
        return "Runtime assertion failed" in str(error)
    return False


def main(given: Sequence[str] | None = None) -> int:
    """Exit status 1 when a program fails."""
    parser = arguments_of(__doc__)
    parser.add_argument("--engine", default="reference", choices=["reference", "tensorrt"])
    chosen = parser.parse_args(given)
    device = "cuda" if chosen.engine == "tensorrt" else "cpu"
    return run_rounds(size_programs(), functools.partial(check, options=options_of(chosen, chosen.engine), device=device), chosen)


if __name__ == "__main__":
    raise SystemExit(main())
