"""One engine segment: segment to network to plans to engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from torchkiln.engines import EngineLoader
from torchkiln.stage_clock import StageClock
from torchkiln_converters import NetworkConverter
from torchkiln_core import BuildOptions, Network, Plan, Program, Segment
from torchkiln_core.stages import Engine, PlanBuilder, PlanCache
from torchkiln_runtime import CachedBuilder, TensorRTBuilder, require_library
from torchkiln_runtime.targets import resolve_targets


@dataclass(frozen=True, slots=True)
class CompiledSegment:
    """An engine segment with all that was made of it."""

    segment: Segment
    network: Network
    plans: tuple[Plan, ...]
    engine: Engine


class SegmentCompiler:
    """Compiles engine segments for one device.

    Args:
        converter: Writes the network.
        options: Which plans are built; none where neither targets are named nor a GPU runs them.
        loader: Loads the engines.
        cache: Plans built before, by key; ``forget_plans`` lets go of it.
        clock: Where the time of each step goes.

    Raises:
        BuildError: Targets are named and no library is installed, or it does not know them.
    """

    def __init__(
        self,
        converter: NetworkConverter,
        options: BuildOptions,
        loader: EngineLoader,
        cache: PlanCache,
        clock: StageClock,
    ) -> None:
        self._converter = converter
        self.options = options
        self._loader = loader
        self._cache: PlanCache | None = cache
        self._clock = clock
        for build in self._builds():
            resolve_targets(build.targets, require_library(build.library))

    def compile(self, segment: Segment, program: Program) -> CompiledSegment:
        """Converts, builds and loads.

        Raises:
            ConversionError: No layers for a call.
            BuildError: TensorRT refused.
        """
        with self._clock.measure("convert"):
            network = self._converter.convert(segment, program)
        with self._clock.measure("build"):
            plans = tuple(self._builder(options).build(network) for options in self._builds())
        with self._clock.measure("load"):
            engine = self._loader.load(network, plans)
        return CompiledSegment(segment, network, plans, engine)

    @property
    def device(self) -> torch.device:
        """Where the engines run."""
        return self._loader.device

    def forget_plans(self) -> None:
        """Builds anew from now on: a compilation that is done would only hold on to plans of weights that have changed since."""
        self._cache = None

    def _builder(self, options: BuildOptions) -> PlanBuilder:
        builder = TensorRTBuilder(options)
        return builder if self._cache is None else CachedBuilder(builder, self._cache)

    def _builds(self) -> tuple[BuildOptions, ...]:
        """One build for the GPU at hand, if it runs the engine, and one for the named targets."""
        current = (dataclasses.replace(self.options, targets=("current",)),) if self._loader.kind == "tensorrt" else ()
        named = (self.options,) if self.options.targets and self.options.targets != ("current",) else ()
        return current + named


def plan_bytes(plans: tuple[Plan, ...]) -> Mapping[str, int]:
    """Size of each plan by what it was built for."""
    return {str(plan.target): plan.data.numel() for plan in plans}
