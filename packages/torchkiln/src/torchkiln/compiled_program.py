"""A built program: the stitched graph with its engines, over flat inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torchkiln_core import Partition
from torchkiln_core.stages import Engine

from torchkiln.report import Report
from torchkiln.segment_compiler import CompiledSegment, SegmentCompiler


class EngineCall(torch.nn.Module):
    """An engine as a submodule of the stitched graph."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Runs the engine."""
        return self.engine(*inputs)


class CompiledProgram:
    """A partition whose engine segments run on engines."""

    def __init__(self, partition: Partition, segments: Mapping[str, CompiledSegment], compiler: SegmentCompiler, report: Report) -> None:
        self.partition = partition
        self.segments = dict(segments)
        self.report = report
        self._compiler = compiler
        self._weights = partition.program.weights
        self._stitched = partition.module
        for name, segment in self.segments.items():
            self._install(name, segment)

    def __call__(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Runs the program on flat inputs in the order of ``Program.user_inputs``; gives its flat outputs.

        Raises:
            ShapeOutOfProfile: A size outside what was compiled.
        """
        weights = [self._weights[name] for name in self.partition.weights]
        result: Sequence[Any] = self._stitched(*inputs, *weights)
        return result

    def replace_weights(self, weights: Mapping[str, torch.Tensor], changed: frozenset[str]) -> None:
        """Converts and builds anew the engine segments that read a changed weight.

        Args:
            weights: All weights by placeholder name.
            changed: Those that differ from what was built.
        """
        self._weights = dict(weights)
        program = dataclasses.replace(self.partition.program, weights=self._weights)
        self.partition = dataclasses.replace(self.partition, program=program)
        for name, made in list(self.segments.items()):
            if changed.intersection(made.segment.weights):
                self.segments[name] = self._compiler.compile(made.segment, program)
                self._install(name, self.segments[name])

    def _install(self, name: str, segment: CompiledSegment) -> None:
        setattr(self._stitched, name, EngineCall(segment.engine))


