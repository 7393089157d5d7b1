"""Static engines of a dynamic network, made while the dynamic engine serves."""

from __future__ import annotations

from collections.abc import Sequence

from torchkiln import backends
from torchkiln.engines import EngineLoader
from torchkiln.weights import fingerprint
from torchkiln_core import BuildError, BuildOptions, Network
from torchkiln_core.stages import Engine
from torchkiln_runtime import CachedBuilder, TensorRTBuilder, TensorRTEngine, fixed_at, narrowed
from torchkiln_runtime.shapes import Shapes


class StaticEngines:
    """Makes engines of one network for given shapes, with the weights that the network was built with.

    Plans go through ``torchkiln.backends.plan_cache``, as those of compilations do.

    Args:
        network: With dynamic sizes.
        loader: Loads the engines.
        builds: How their plans are built; nothing is built for the reference engine.
    """

    def __init__(self, network: Network, loader: EngineLoader, builds: Sequence[BuildOptions]) -> None:
        self._network = network
        self._loader = loader
        self._builds = tuple(builds) if loader.kind == "tensorrt" else ()
        self._weights = [value.constant for step in network.all_steps() for value in step.outputs if value.constant is not None]
        self._seen = fingerprint(self._weights)

    def build(self, shapes: Shapes) -> Engine:
        """An engine for exactly these shapes, ready to run.

        Raises:
            BuildError: TensorRT refused, or a weight has changed since the dynamic engine was built.
            PlanError: The plan does not run here.
        """
        self._check_weights()
        static = narrowed(self._network, fixed_at(self._network, shapes))
        cache = backends.plan_cache.for_compilation()
        plans = [CachedBuilder(TensorRTBuilder(options), cache).build(static) for options in self._builds]
        # What was read meanwhile must be what the dynamic engine has.
        self._check_weights()
        engine = self._loader.load(static, plans)
        if isinstance(engine, TensorRTEngine):
            engine.warm_up()
        return engine

    def _check_weights(self) -> None:
        if self._loader.kind == "tensorrt" and fingerprint(self._weights) != self._seen:
            raise BuildError(
                "a weight has changed since the engine was built, so a static engine would give other results",
                fix="call refresh(), or compile with weights='follow'",
            )
