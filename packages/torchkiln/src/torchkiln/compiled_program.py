"""A built program over flat inputs: the stitched graph with its engines."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from torchkiln.bodies import Body, BodyCall
from torchkiln.determinism import deterministically
from torchkiln.fallback_warning import warn_of_fallback
from torchkiln.layouts import arrange, inverse_of, layouts_of
from torchkiln.report import Report, StaticEngineReport
from torchkiln.segment_compiler import CompiledSegment, SegmentCompiler
from torchkiln.torch_segments import TorchSegments, by_inductor, held_name, inlined
from torchkiln_core import BuildError, BuildOptions, Partition
from torchkiln_core.stages import Engine
from torchkiln_runtime import ShapeDispatch, TensorRTEngine

_TRIED = 4
"""Sets of shapes at which an engine may have no kernels before it is given up: every one takes the time of a failing compilation."""


class EngineCall:
    """An engine as the stitched graph calls it.

    Args:
        engine: Gives contiguous outputs.
        spare: Makes what runs instead where the library cannot compile kernels of the engine, which shows in its first run at some sizes;
            ``None`` makes that an error.
        layouts: For each output, the order of its dimensions in memory where eager's is another than contiguous, else ``None``: a view
            further on may depend on it.
    """

    def __init__(self, engine: Engine, layouts: Sequence[tuple[int, ...] | None], spare: Callable[[], Engine] | None) -> None:
        self.engine = engine
        self._spare = spare
        self._instead: Engine | None = None
        self._without_kernels: set[tuple[torch.Size, ...]] = set()
        self._layouts = [(index, order, inverse_of(order)) for index, order in enumerate(layouts) if order is not None]

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Runs the engine; for sizes of which it has no kernels, what runs instead.

        Raises:
            BuildError: The library cannot compile its kernels, and nothing is to run instead.
        """
        if self._instead is not None and _shapes(inputs) in self._without_kernels:
            outputs = self._instead(*inputs)
        else:
            try:
                outputs = self.engine(*inputs)
            except BuildError as error:
                outputs = self._replace(_shapes(inputs), error)(*inputs)
        if not self._layouts:
            return outputs
        arranged = list(outputs)
        for index, order, inverse in self._layouts:
            arranged[index] = arrange(outputs[index], order, inverse)
        return tuple(arranged)

    def _replace(self, shapes: tuple[torch.Size, ...], error: BuildError) -> Engine:
        """What runs at these shapes from now on; in place of an engine that has failed at a few, at all."""
        if self._spare is None:
            raise error
        if self._instead is None:
            warn_of_fallback(f"an engine runs layer by layer in PyTorch at sizes for which it has no kernels: {error}")
            self._instead = self._spare()
        self._without_kernels.add(shapes)
        if len(self._without_kernels) == _TRIED:
            self.engine = self._instead
        return self._instead


def _shapes(inputs: Sequence[torch.Tensor]) -> tuple[torch.Size, ...]:
    return tuple([tensor.shape for tensor in inputs])


class StitchedProgram:
    """The graph that calls segments in order.

    Args:
        module: Its placeholders are the program's user inputs, then the weights that it takes.
        engines: By submodule name.
        weights: Values of the trailing placeholders.
        torch_segments: How the other submodules run.
        bodies: Graphs of higher-order calls that hold engines; their segments run call by call.
    """

    def __init__(
        self,
        module: torch.fx.GraphModule,
        engines: Mapping[str, EngineCall],
        weights: Sequence[torch.Tensor],
        torch_segments: TorchSegments = "eager",
        bodies: Sequence[CompiledBody] = (),
    ) -> None:
        by_call = {*engines, *(item.body.segment for item in bodies)}
        compiled = {} if torch_segments == "eager" else _compiled_segments(module, by_call)
        self.module = inlined(module, [*engines, *compiled])
        self.weights = tuple(weights)
        self._engines = engines
        self._forward: Callable[..., Sequence[Any]] = self.module.forward
        runs: dict[str, Callable[..., Any]] = {**engines, **compiled}
        runs |= {held_name(item.body.segment, item.body.graph): BodyCall(item.body, item.program.run) for item in bodies}
        for name, run in runs.items():
            self.install(name, run)

    def install(self, name: str, engine: Callable[..., Any]) -> None:
        """Makes the submodule ``name`` run on ``engine``, or what runs a graph in its place."""
        # Python finds an attribute of the instance before it asks for submodules, and calls it without what modules do around a call.
        object.__setattr__(self.module, name, engine)

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Flat user inputs to flat outputs.

        Raises:
            ShapeOutOfProfile: A size outside what was compiled.
        """
        return self._forward(*inputs, *self.weights)

    def run_deterministically(self) -> None:
        """From now on, what runs in PyTorch does so under torch's switches for reproducible results; engines alone need none."""
        calls = [node for node in self.module.graph.nodes if node.op.startswith("call_") and node.target is not operator.getitem]
        engines = [call.engine for call in self._engines.values()]
        if not all(map(_on_tensorrt, engines)) or any(node.target not in self._engines for node in calls):
            self._forward = deterministically(self.module.forward)


def _on_tensorrt(engine: Engine) -> bool:
    parts = [item.engine for item in engine.candidates] if isinstance(engine, ShapeDispatch) else [engine]
    return all(isinstance(part, TensorRTEngine) for part in parts)


def _compiled_segments(module: torch.fx.GraphModule, others: Collection[str]) -> dict[str, Callable[..., Any]]:
    segments = {name: child for name, child in module.named_children() if name not in others}
    return {name: by_inductor(child) for name, child in segments.items() if isinstance(child, torch.fx.GraphModule)}


@dataclass(frozen=True, slots=True)
class CompiledBody:
    """A graph of a higher-order call with what was compiled of it."""

    body: Body
    program: CompiledProgram


class CompiledProgram:
    """A stitched program with all that it was made of, so that it can be rebuilt and saved."""

    def __init__(
        self,
        partition: Partition,
        segments: Mapping[str, CompiledSegment],
        compiler: SegmentCompiler,
        report: Report,
        torch_segments: TorchSegments = "eager",
        bodies: Sequence[CompiledBody] = (),
    ) -> None:
        self.partition = partition
        self.segments = dict(segments)
        # A body without an engine runs as it was captured, not as its decomposed graph.
        self.bodies = tuple(item for item in bodies if item.program.has_engines)
        self._report = report
        self._compiler = compiler
        self._on_change: Callable[[Report], None] | None = None
        engines = {name: self._engine_call(segment) for name, segment in segments.items()}
        weights = self._stitched_weights(partition.program.weights)
        self.run = StitchedProgram(partition.module, engines, weights, torch_segments, self.bodies)
        if compiler.options.deterministic:
            self.run.run_deterministically()

    @property
    def has_engines(self) -> bool:
        """Whether anything of it runs in an engine, in the program itself or in a graph that a higher-order call runs."""
        return bool(self.segments or self.bodies)

    @property
    def report(self) -> Report:
        """What was compiled, and what has become of hot shapes since."""
        static = tuple(
            StaticEngineReport(name, found.shapes, found.state, found.build_ms, found.reason)
            for name, engine in self._dispatches()
            for found in engine.specializations
        )
        return dataclasses.replace(self._report, static_engines=static) if static else self._report

    def tell(self, listener: Callable[[Report], None]) -> None:
        """Gives the report to ``listener`` whenever a static engine is swapped in or its build fails, from the thread that builds."""
        self._on_change = listener
        for _, engine in self._dispatches():
            if engine.hot is not None:
                engine.hot.on_change = self._tell

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until no static engine is being built; ``False`` when one takes longer than ``timeout_s``."""
        done = [engine.hot.wait(timeout_s) for _, engine in self._dispatches() if engine.hot is not None]
        return all(done)

    def _tell(self) -> None:
        if self._on_change is not None:
            self._on_change(self.report)

    def _dispatches(self) -> list[tuple[str, ShapeDispatch]]:
        own = [(name, made.engine) for name, made in self.segments.items() if isinstance(made.engine, ShapeDispatch)]
        inner = [(f"{item.body.path}/{name}", engine) for item in self.bodies for name, engine in item.program._dispatches()]
        return own + inner

    @property
    def device(self) -> torch.device:
        """Where the program runs."""
        return self._compiler.device

    @property
    def build_options(self) -> BuildOptions:
        """How its plans are built."""
        return self._compiler.options

    def replace_weights(self, weights: Mapping[str, torch.Tensor], changed: frozenset[str]) -> None:
        """Converts and builds anew the engine segments that read a changed weight.

        Args:
            weights: The weights of the model by placeholder name. Constants that were made during lowering stay.
            changed: Those that differ from what was built.
        """
        weights = {**self.partition.program.weights, **weights}
        program = dataclasses.replace(self.partition.program, weights=weights)
        self.partition = dataclasses.replace(self.partition, program=program)
        self.run.weights = self._stitched_weights(weights)
        for name, made in self.segments.items():
            if changed.intersection(made.segment.weights):
                self.segments[name] = self._compiler.compile(made.segment, program)
                self.run.install(name, self._engine_call(self.segments[name]))
        for item in self.bodies:
            outer = item.body.weights
            item.program.replace_weights(
                {name: weights[source] for name, source in outer.items()},
                frozenset(name for name, source in outer.items() if source in changed),
            )
        if self._on_change is not None:
            self.tell(self._on_change)

    def _engine_call(self, made: CompiledSegment) -> EngineCall:
        return EngineCall(made.engine, layouts_of(made.segment), self._compiler.spare_of(made.network))

    def _stitched_weights(self, weights: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return tuple(weights[name] for name in self.partition.weights)
