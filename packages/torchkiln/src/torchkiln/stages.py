"""The compiler: lower, partition, convert, build, load, stitch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch

from torchkiln.compiled_program import CompiledProgram
from torchkiln.engines import choose_engine, device_of
from torchkiln.report import Report, SegmentReport
from torchkiln.segment_compiler import CompiledSegment, SegmentCompiler, plan_bytes
from torchkiln.stage_clock import StageClock
from torchkiln_converters import ConverterRegistry, NetworkConverter, default_registry
from torchkiln_core import (
    CompileError,
    InternalError,
    Options,
    Partition,
    Program,
    Rejection,
    Segment,
)
from torchkiln_core.call import source_of
from torchkiln_core.rejection import target_name
from torchkiln_core.stages import Lowering
from torchkiln_lowering import AtenLowering
from torchkiln_partitioning import LevelPartitioner
from torchkiln_runtime import MemoryPlanCache


class FallbackWarning(UserWarning):
    """A segment could not be compiled and runs in PyTorch instead; the result is still right."""


class Compiler:
    """The stages of one compilation, with its options.

    Args:
        options: The options of every stage.
        lowering: The lowering stage; the standard one by default.
        registry: The converters; the standard ones and those of installed packages by default.
    """

    def __init__(self, options: Options, lowering: Lowering | None = None, registry: ConverterRegistry | None = None) -> None:
        self.options = options
        self.registry = registry or default_registry()
        self.clock = StageClock()
        self._lowering = lowering or AtenLowering(options.lowering)

    def lower(self, program: Program) -> Program:
        """Program to a program of the operators that converters know."""
        with self.clock.measure("lower"):
            return self._lowering.lower(program, self.registry)

    def build(self, program: Program) -> CompiledProgram:
        """Lowered program to something that runs.

        A segment that cannot be converted or built runs in PyTorch, with a ``FallbackWarning`` that says why, unless full compilation
        is required.

        Raises:
            CompileError: No valid division, or a failure where full compilation is required.
        """
        device = device_of([*_fake_inputs(program), *program.weights.values()])
        kind = choose_engine(self.options.runtime, self.options.build, device)
        compiler = SegmentCompiler(NetworkConverter(self.registry), self.options.build, kind, device, MemoryPlanCache(), self.clock)
        refused: dict[str, Rejection] = {}
        while True:
            with self.clock.measure("partition"):
                partition = LevelPartitioner(self.options.partition, refused).partition(program, self.registry)
            segments, failures = self._compile_segments(partition, compiler)
            if not failures:
                break
            refused |= failures
        compiler.forget_plans()
        report = Report(_segment_reports(partition, segments), partition.rejections, kind, dict(self.clock.stage_ms))
        return CompiledProgram(partition, segments, compiler, report)

    def _compile_segments(self, partition: Partition, compiler: SegmentCompiler) -> tuple[dict[str, CompiledSegment], dict[str, Rejection]]:
        segments: dict[str, CompiledSegment] = {}
        failures: dict[str, Rejection] = {}
        for segment in partition.segments:
            if segment.kind == "engine":
                try:
                    segments[segment.name] = compiler.compile(segment, partition.program)
                except (CompileError, InternalError) as error:
                    if self.options.partition.require_full_compilation:
                        raise
                    warnings.warn(f"{segment.name} runs in PyTorch: {error}", FallbackWarning, stacklevel=2)
                    failures |= _refusals(segment, error)
        return segments, failures


def _refusals(segment: Segment, error: CompileError | InternalError) -> dict[str, Rejection]:
    """The guilty node when the error names one, else every call of the segment."""
    calls = {node.name: node for node in segment.module.graph.nodes if node.op == "call_function"}
    named = error.node if isinstance(error, CompileError) else (error.layer or "").partition("/")[0]
    guilty = [calls[named]] if named in calls else list(calls.values())
    message = str(error).splitlines()[0]
    return {node.name: Rejection(target_name(node.target), node.name, "build-failed", message, source_of(node)) for node in guilty}


def _segment_reports(partition: Partition, compiled: Mapping[str, CompiledSegment]) -> tuple[SegmentReport, ...]:
    reports = []
    for segment in partition.segments:
        if segment.kind == "torch":
            reports.append(SegmentReport(segment.name, "torch", segment.calls))
        else:
            made = compiled[segment.name]
            build_ms = sum(plan.build_ms for plan in made.plans)
            reports.append(SegmentReport(segment.name, "engine", segment.calls, len(made.network.steps), plan_bytes(made.plans), build_ms))
    return tuple(reports)


def _fake_inputs(program: Program) -> list[torch.Tensor]:
    values = (node.meta.get("val") for node in program.module.graph.nodes if node.op == "placeholder")
    return [value for value in values if isinstance(value, torch.Tensor)]
