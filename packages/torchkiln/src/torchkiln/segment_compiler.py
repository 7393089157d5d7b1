"""One engine segment: segment to network to plans to engines."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from torchkiln.engines import EngineKind, EngineLoader, spare_of
from torchkiln.profiles import SymbolRanges, variants
from torchkiln.specializing import StaticEngines
from torchkiln.stage_clock import StageClock
from torchkiln_converters import NetworkConverter
from torchkiln_core import BuildOptions, Network, Plan, Program, RuntimeOptions, Segment
from torchkiln_core.stages import Engine, PlanBuilder, PlanCache
from torchkiln_runtime import CachedBuilder, Candidate, HotShapes, ShapeDispatch, TensorRTBuilder, input_symbols, require_library
from torchkiln_runtime.targets import resolve_targets


@dataclass(frozen=True, slots=True)
class CompiledSegment:
    """An engine segment with all that was made of it; ``profiles`` are those that the plans were built for, in order."""

    segment: Segment
    network: Network
    plans: tuple[Plan, ...]
    engine: Engine
    profiles: tuple[SymbolRanges, ...] = ()


@dataclass(frozen=True, slots=True)
class DynamicSizes:
    """What a compilation does about sizes.

    Attributes:
        profiles: One plan is built for each.
        after: Calls that make shapes hot, so that a static plan is built for them; ``None`` builds none.
        limit: Static plans kept for one engine.
    """

    profiles: tuple[SymbolRanges, ...] = ()
    after: int | None = None
    limit: int = 8

    @classmethod
    def of(cls, options: RuntimeOptions, profiles: Sequence[SymbolRanges]) -> DynamicSizes:
        """As the options say."""
        return cls(tuple(profiles), options.specialize, options.specialize_limit)


_NO_PROFILES = DynamicSizes()


class SegmentCompiler:
    """Compiles engine segments for one device.

    Args:
        converter: Writes the network.
        options: Which plans are built; none where neither targets are named nor a GPU runs them.
        loader: Loads the engines.
        cache: Plans built before, by key; ``forget_plans`` lets go of it.
        clock: Where the time of each step goes.
        sizes: What is done about sizes.

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
        sizes: DynamicSizes = _NO_PROFILES,
    ) -> None:
        self._converter = converter
        self.options = options
        self._loader = loader
        self._cache: PlanCache | None = cache
        self._clock = clock
        self._sizes = sizes
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="torchkiln-specialize")
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
        made = variants(network, self._sizes.profiles)
        with self._clock.measure("build"):
            plans = [[self._build(options, name, item) for options in self._builds()] for name, item in made]
        with self._clock.measure("load"):
            loaded = [(name, item, self._loader.load(item, of)) for (name, item), of in zip(made, plans, strict=True)]
        known = {profile.name: profile for profile in self._sizes.profiles}
        profiles = tuple(known[name] for name, _ in made if name)
        return CompiledSegment(segment, network, tuple(plan for of in plans for plan in of), self._engine(network, loaded), profiles)

    def _build(self, options: BuildOptions, profile: str, network: Network) -> Plan:
        plan = self._builder(options).build(network)
        return dataclasses.replace(plan, profile=profile) if profile else plan

    def _engine(self, network: Network, loaded: Sequence[tuple[str, Network, Engine]]) -> Engine:
        """The one engine, or the dispatch between those of several profiles and of hot shapes."""
        specializes = self._sizes.after is not None and bool(input_symbols(network))
        if len(loaded) == 1 and not specializes:
            return loaded[0][2]
        hot = None
        if specializes and self._sizes.after is not None:
            static = StaticEngines(network, self._loader, self._builds()[:1])
            hot = HotShapes(self._sizes.after, self._sizes.limit, static.build, self._executor)
        return ShapeDispatch([Candidate.of(*item) for item in loaded], hot)

    @property
    def device(self) -> torch.device:
        """Where the engines run."""
        return self._loader.device

    @property
    def kind(self) -> EngineKind:
        """What the engines are."""
        return self._loader.kind

    def spare_of(self, network: Network) -> Callable[[], Engine] | None:
        """Makes what runs a network where the library cannot compile its kernels; ``None`` where that is an error."""
        return None if self._loader.required else spare_of(network, self.options)

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
    return {f"{plan.target}, profile {plan.profile}" if plan.profile else str(plan.target): plan.data.numel() for plan in plans}
