"""A plan builder that looks before it builds."""

from __future__ import annotations

import dataclasses
import logging
import time

from torchkiln_core import Network, Plan
from torchkiln_core.stages import PlanCache
from torchkiln_runtime.builder import TensorRTBuilder
from torchkiln_runtime.ones import inner_sizes
from torchkiln_runtime.reference import bindings_of
from torchkiln_runtime.shapes import find_symbols

_log = logging.getLogger("torchkiln.build")


class CachedBuilder:
    """Builds a plan unless the cache has one of the same key.

    Keys ignore names, so a plan from the cache gets the names and symbols of the network at hand.

    Args:
        builder: Builds what the cache lacks.
        cache: Keeps plans.
    """

    def __init__(self, builder: TensorRTBuilder, cache: PlanCache) -> None:
        self._builder = builder
        self._cache = cache

    def build(self, network: Network) -> Plan:
        """A plan from the cache or a new one.

        Raises:
            BuildError: As ``TensorRTBuilder.build``.
        """
        start = time.perf_counter()
        prepared = self._builder.prepare(network)
        plan = self._cache.get(prepared.key)
        if plan is None:
            plan = prepared.build()
            self._cache.put(plan)
            return plan
        _log.info("plan %s taken from the cache", plan.key[:12])
        inputs, outputs = bindings_of(network)
        build_ms = (time.perf_counter() - start) * 1e3
        symbols = find_symbols(inputs)
        sizes = inner_sizes(network, symbols)
        return dataclasses.replace(plan, inputs=inputs, outputs=outputs, symbols=symbols, inner_sizes=sizes, build_ms=build_ms)
