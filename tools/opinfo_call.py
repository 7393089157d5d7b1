"""One call of a sample, in eager PyTorch and compiled."""

from __future__ import annotations

import contextlib
import enum
import signal
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
import torch.fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

import torchkiln
from torchkiln.backend import torchkiln as compile_graph
from torchkiln.report import Report
from torchkiln_core import ExportError, KilnError

HALVES = (torch.float16, torch.bfloat16)


class NotCaptured(Exception):
    """torch cannot trace the call."""


class TooSlow(BaseException):
    """A sample takes too long. No ``Exception``, so that nothing that runs swallows it."""


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raises ``TooSlow`` in the main thread after so many seconds."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlow(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1)  # again every second: a finalizer that it falls into swallows it
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True, slots=True)
class SampleCall:
    """A function with its arguments, the tensors among them apart from the rest."""

    function: Callable[..., Any]
    leaves: tuple[Any, ...]
    spec: pytree.TreeSpec

    @staticmethod
    def of(function: Callable[..., Any], sample: Any) -> SampleCall:
        """The call of a ``SampleInput``."""
        leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        return SampleCall(function, tuple(leaves), spec)

    def widened(self, dtypes: Collection[torch.dtype] = HALVES, wide: torch.dtype = torch.float32) -> SampleCall:
        """The call on ``wide`` copies of its tensors of some dtypes, with a result in ``wide`` where it asks for one of these."""

        def widen(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                return leaf.to(wide) if leaf.dtype in dtypes else leaf
            return wide if isinstance(leaf, torch.dtype) and leaf in dtypes else leaf

        return SampleCall(self.function, tuple(map(widen, self.leaves)), self.spec)

    def on(self, device: str) -> SampleCall:
        """The call on a device."""

        def move(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                return leaf.to(device)
            return torch.device(device) if isinstance(leaf, torch.device) else leaf

        return SampleCall(self.function, tuple(map(move, self.leaves)), self.spec)

    def tensors(self) -> list[torch.Tensor]:
        """Copies of the tensors, each once; an expanded one keeps its shared elements."""
        return [leaf.clone() for leaf in self._own().values()]

    def _own(self) -> dict[int, torch.Tensor]:
        return {id(leaf): leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)}

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """The function on other tensors in the place of its own."""
        mine = dict(zip(self._own(), tensors, strict=True))
        leaves = [mine[id(leaf)] if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.function(*args, **kwargs)

    def eager(self) -> tuple[Any, list[torch.Tensor]]:
        """What PyTorch returns, and the arguments afterwards."""
        return _seeded(self, self.tensors())

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and the keyword arguments."""
        args, kwargs = pytree.tree_unflatten(list(self.leaves), self.spec)
        return args, kwargs

    def __str__(self) -> str:
        def shown(leaf: Any) -> Any:
            return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}" if isinstance(leaf, torch.Tensor) else leaf

        args, kwargs = pytree.tree_unflatten([shown(leaf) for leaf in self.leaves], self.spec)
        return ", ".join([*map(str, args), *(f"{name}={value}" for name, value in kwargs.items())])


@dataclass(frozen=True, slots=True)
class CompiledCall:
    """A compiled call; ``reports`` has the report of each graph once it ran."""

    run: Callable[..., Any]
    call: SampleCall
    reports: list[Report]

    def __call__(self) -> tuple[Any, list[torch.Tensor]]:
        """As ``SampleCall.eager``."""
        return _seeded(self.run, self.call.tensors())


SEED = 42
"""The seed that the database's own wrappers of random operators set, which capture does not record."""


def _seeded(run: Callable[..., Any], tensors: list[torch.Tensor]) -> tuple[Any, list[torch.Tensor]]:
    torch.manual_seed(SEED)
    return run(*tensors), tensors


def has_tensors(values: Any) -> bool:
    """Whether a tensor is among them."""
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(values))


class Capture(enum.Enum):
    """How a call becomes a program: traced with static or with symbolic sizes, or exported."""

    STATIC = "static"
    DYNAMIC = "dynamic"
    EXPORT = "export"


def compile_call(call: SampleCall, options: Mapping[str, Any], capture: Capture = Capture.STATIC) -> CompiledCall:
    """Captures the call and compiles it.

    Raises:
        NotCaptured: torch itself cannot trace it.
    """
    reports: list[Report] = []
    options = {**options, "on_report": reports.append}
    run = _compile_exported(call, options) if capture is Capture.EXPORT else _compile_traced(call, options, capture)
    return CompiledCall(run, call, reports)


def _compile_exported(call: SampleCall, options: Mapping[str, Any]) -> Callable[..., Any]:
    def function(*tensors: torch.Tensor) -> Any:
        return call(*tensors)

    try:
        return torchkiln.compile(function, tuple(call.tensors()), **options)
    except ExportError as error:
        raise NotCaptured(str(error)) from error


def _compile_traced(call: SampleCall, options: Mapping[str, Any], capture: Capture) -> Callable[..., Any]:
    """Through the entry that ``torch.compile`` calls, on a graph of one function."""
    structure: list[tuple[list[Any], pytree.TreeSpec]] = []

    def flat(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaves, spec = pytree.tree_flatten(call(*tensors))
        if any(isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)) for leaf in leaves):
            raise NotCaptured("the call returns a number that depends on data")
        structure[:] = [([None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], spec)]
        return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))

    tensors = call.tensors()
    graph = torch.fx.Graph()
    graph.output(graph.call_function(flat, tuple(graph.placeholder(f"arg{index}") for index in range(len(tensors)))))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    mode = FakeTensorMode(shape_env=ShapeEnv())
    # Left to itself, AOTAutograd makes every size symbolic.
    given = [mode.from_tensor(tensor, static_shapes=True) for tensor in tensors] if capture is Capture.STATIC else tensors
    try:
        with tracing(TracingContext(mode)):
            compiled = compile_graph(module, given, options=options)
    except (KilnError, NotCaptured):
        raise
    except Exception as error:
        codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
        if any(code.co_name == "_compile_forward" for code in codes) or "torchkiln" in codes[-1].co_filename:
            raise
        raise NotCaptured(f"{type(error).__name__}: {error}") from error

    def run(*inputs: torch.Tensor) -> Any:
        results = iter(compiled(*inputs))
        leaves, spec = structure[0]
        return pytree.tree_unflatten([next(results) if leaf is None else leaf for leaf in leaves], spec)

    return run
