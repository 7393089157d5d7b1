"""The compiler: lower, partition, convert, build, load, stitch."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch
import torch.fx

from torchkiln import backends
from torchkiln.benchmarking import SegmentBenchmark
from torchkiln.bodies import Body
from torchkiln.compiled_program import CompiledBody, CompiledProgram
from torchkiln.debug_folder import DebugFolder
from torchkiln.determinism import deterministically
from torchkiln.engines import EngineKind, EngineLoader, choose_engine, context_settings, device_of
from torchkiln.fallback import compile_bodies, compile_segments
from torchkiln.logs import warn_once
from torchkiln.profiles import SymbolRanges
from torchkiln.report import Report, describe_partition, with_bodies
from torchkiln.segment_compiler import CompiledSegment, DynamicSizes, SegmentCompiler, plan_bytes
from torchkiln.stage_clock import StageClock
from torchkiln.torch_precision import tf32_in_torch
from torchkiln_converters import Converter, ConverterRegistry, NetworkConverter, default_registry
from torchkiln_core import Network, Options, Partition, Program, Rejection, Segment
from torchkiln_lowering import AtenLowering, Pipeline
from torchkiln_partitioning import BodyPartitioner, CostModel, LevelPartitioner

P = ParamSpec("P")
R = TypeVar("R")
_LOWERING, _PARTITION, _BUILD = (logging.getLogger(f"torchkiln.{area}") for area in ("lowering", "partition", "build"))


class Compiler:
    """The stages of one compilation, with its options.

    Args:
        options: The options of every stage.

    Raises:
        TypeError: An extension of another type than expected.
    """

    def __init__(self, options: Options) -> None:
        self.options = backends.resolve(options)
        registry = _registry(options)
        self.registry = registry.deterministic() if self.options.build.deterministic else registry
        self.clock = StageClock()
        self.debug = DebugFolder(self.options)
        matrices, convolutions = tf32_in_torch()
        engines = bool(self.options.build.allow_tf32)
        self._cost_model = CostModel(tf32_matrices=matrices, tf32_convolutions=convolutions, tf32_engines=engines)
        self._lowering = AtenLowering(options.lowering, _pipeline(options))

    @property
    def targets(self) -> frozenset[Callable[..., Any]]:
        """The operators that have a converter, or a decomposition that is not PyTorch's."""
        return frozenset(self.registry.targets) | self._lowering.targets

    def lower(self, program: Program) -> Program:
        """Program to a program of the operators that converters know."""
        self.debug.keep("captured.txt", lambda: _text_of(program.module))
        with self.clock.measure("lower"), self.debug.watch("lower"):
            lowered = self._lowering.lower(program, self.registry)
        self.debug.keep("lowered.txt", lambda: _text_of(lowered.module))
        _LOWERING.info("lowered %d calls to %d", _calls(program), _calls(lowered))
        _LOWERING.debug("lowered graph\n%s", _Lazy(lambda: _text_of(lowered.module)))
        return lowered

    def build(self, program: Program, profiles: Sequence[SymbolRanges] = ()) -> CompiledProgram:
        """Lowered program to something that runs.

        A segment that cannot be converted or built runs in PyTorch, with a ``FallbackWarning`` that says why, unless full compilation
        is required. One plan is built for each profile.

        Raises:
            CompileError: No valid division, or a failure where full compilation is required.
        """
        device = device_of(program.module)
        kind = choose_engine(self.options.runtime, self.options.build, device)
        loader = EngineLoader(kind, device, context_settings(self.options.runtime), self.options.partition.require_full_compilation)
        cache = backends.plan_cache.for_compilation()
        sizes = DynamicSizes.of(self.options.runtime, profiles)
        compiler = SegmentCompiler(NetworkConverter(self.registry), self.options.build, loader, cache, self.clock, sizes)
        with self.debug.watch("build"):
            built = self._build(_Whole(program), compiler, self._benchmark(kind, device))
        compiler.forget_plans()
        _PARTITION.info("%s", built.report)
        return built

    def _build(self, whole: _Whole, compiler: SegmentCompiler, judge: SegmentBenchmark | None) -> CompiledProgram:
        """A program, or the graph of a higher-order call, and the graphs that it runs in turn."""
        partition, made = compile_segments(
            functools.partial(self._divide, whole),
            functools.partial(self._make, compiler, whole.path),
            required=self.options.partition.require_full_compilation,
            judge=judge,
        )
        # A segment may have been made in an earlier division, under another name.
        segments = {item.name: dataclasses.replace(made[item.name], segment=item) for item in partition.segments if item.name in made}
        partition, inner = compile_bodies(
            partition, compiler.device, lambda body: self._build(self._whole_of(body, whole.path), compiler, judge)
        )
        report = describe_partition(partition, compiler.kind, self.clock.stage_ms, lambda name: _built(segments[name]))
        report = with_bodies(report, [(body, program.report) for body, program in inner])
        bodies = [CompiledBody(body, program) for body, program in inner]
        return CompiledProgram(partition, segments, compiler, report, self.options.runtime.torch_segments, bodies)

    def _whole_of(self, body: Body, path: str) -> _Whole:
        """A body as a program to compile."""
        with self.clock.measure("lower"):
            lowered = self._lowering.lower(body.program, self.registry)
        return _Whole(lowered, f"{path}{body.path}/", BodyPartitioner)

    def _benchmark(self, kind: EngineKind, device: torch.device) -> SegmentBenchmark | None:
        if not self.options.build.benchmark:
            return None
        if kind != "tensorrt":
            warn_once("benchmark: nothing is measured where engine segments run on the reference engine")
            return None
        kept = tuple(name for name, place in self.options.partition.node_overrides if place == "engine")
        return SegmentBenchmark(device, self.options.runtime.torch_segments, kept)

    def _make(self, compiler: SegmentCompiler, path: str, segment: Segment, program: Program) -> CompiledSegment:
        name = path + segment.name
        file = name.replace("/", ".")
        self.debug.keep(f"{file}.txt", lambda: _text_of(segment.module))
        self.debug.keep(f"{file}.network.txt", lambda: str(NetworkConverter(self.registry).convert(segment, program)))
        with self.debug.watch(file):
            made = compiler.compile(segment, program)
        for plan in made.plans:
            _BUILD.info("%s: plan for %s, %.1f MB, built in %.0f ms", name, plan.target, plan.data.numel() / 1e6, plan.build_ms)
        _BUILD.debug("%s\n%s", name, _Lazy(lambda: str(made.network)))
        return made

    def in_pytorch(self, function: Callable[P, R]) -> Callable[P, R]:
        """A function that runs in PyTorch, as the options want it to run."""
        return deterministically(function) if self.options.build.deterministic else function

    def explain(self, program: Program) -> Report:
        """What ``build`` would make of a lowered program, from its division and its networks; nothing is built.

        Raises:
            CompileError: As ``build``.
        """
        return self._explain(_Whole(program), device_of(program.module))

    def _explain(self, whole: _Whole, device: torch.device) -> Report:
        partition, networks = compile_segments(
            functools.partial(self._divide, whole), self._convert, required=self.options.partition.require_full_compilation
        )
        partition, inner = compile_bodies(partition, device, lambda body: self._explain(self._whole_of(body, whole.path), device))
        report = describe_partition(partition, "not built", self.clock.stage_ms, lambda name: {"layers": len(networks[name].steps)})
        return with_bodies(report, inner)

    def _convert(self, segment: Segment, program: Program) -> Network:
        with self.clock.measure("convert"):
            return NetworkConverter(self.registry).convert(segment, program)

    def _divide(self, whole: _Whole, refused: Mapping[str, Rejection]) -> Partition:
        with self.clock.measure("partition"):
            partitioner = whole.partitioner(self.options.partition, refused, self._cost_model)
            return partitioner.partition(whole.program, self._lowering.oracle_of(self.registry))


@dataclass(frozen=True, slots=True)
class _Whole:
    """What is divided: a lowered program, or a graph that a higher-order call runs, with the path of its name."""

    program: Program
    path: str = ""
    partitioner: type[LevelPartitioner] = LevelPartitioner


def _registry(options: Options) -> ConverterRegistry:
    """The converters of this package and of installed ones, and the user's."""
    given = options.extensions.converters
    for item in given:
        if not isinstance(item, Converter):
            raise TypeError(f"converters: expected functions under @torchkiln_converters.converter, got {item!r}")
    return default_registry().extend(*(item for item in given if isinstance(item, Converter)))


def _pipeline(options: Options) -> Pipeline | None:
    pipeline = options.extensions.lowering
    if pipeline is not None and not isinstance(pipeline, Pipeline):
        raise TypeError(f"lowering: expected a torchkiln_lowering.Pipeline, got {type(pipeline).__name__} {pipeline!r}")
    return pipeline


class _Lazy:
    """Text for a log that may not be written."""

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text()


def _text_of(module: torch.fx.GraphModule) -> str:
    return module.print_readable(print_output=False)


def _calls(program: Program) -> int:
    return sum(node.op == "call_function" for node in program.module.graph.nodes)


def _built(made: CompiledSegment) -> Mapping[str, Any]:
    """What the report says of a built segment."""
    build_ms = sum(plan.build_ms for plan in made.plans)
    return {"layers": len(made.network.steps), "plan_bytes": plan_bytes(made.plans), "build_ms": build_ms}
