"""An engine for several ranges of sizes: each call runs on the tightest that takes its shapes."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch

from torchkiln_core import InternalError, Network, PlanError, ShapeOutOfProfile
from torchkiln_core.stages import Engine
from torchkiln_runtime.hot_shapes import HotShapes, Route, Specialization, shown
from torchkiln_runtime.reference import bindings_of
from torchkiln_runtime.shapes import ShapeRules, Shapes, find_symbols

_ROUTES = 4096
"""Sets of shapes that are remembered."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An engine with what it takes.

    Attributes:
        name: Of its profile; empty for the whole range.
        engine: The engine.
        rules: Which shapes it takes.
        extent: Number of sizes that it takes, to tell the tighter of two.
    """

    name: str
    engine: Engine
    rules: ShapeRules
    extent: float

    @classmethod
    def of(cls, name: str, network: Network, engine: Engine) -> Self:
        """An engine that was made of ``network``."""
        inputs, outputs = bindings_of(network)
        ranges = [(spec.min_shape, spec.max_shape) for spec in network.specs()]
        rules = ShapeRules(inputs, outputs, find_symbols(inputs), ranges)
        sizes = {size for value in network.inputs for size in value.shape if not isinstance(size, int)}
        dims = [network.dim(size) for size in sizes]
        return cls(name, engine, rules, math.prod(float(dim.max - dim.min + 1) for dim in dims if not isinstance(dim, int)))

    def takes(self, shapes: Shapes) -> bool:
        """Whether the engine runs inputs of these shapes."""
        try:
            self.rules.output_shapes(shapes)
        except ShapeOutOfProfile:
            return False
        return True


class ShapeDispatch:
    """Runs a call on the tightest of several engines, and on static ones for shapes that come often. Threads may share it.

    A call whose shapes came before costs one look-up.

    Args:
        candidates: One per profile, at least one.
        hot: Builds static engines for hot shapes; ``None`` builds none.
    """

    def __init__(self, candidates: Sequence[Candidate], hot: HotShapes | None) -> None:
        self.candidates = tuple(sorted(candidates, key=lambda item: item.extent))
        self.hot = hot
        self._count = self.candidates[0].rules.count
        self._routes: dict[tuple[torch.Size, ...], Route] = {}
        self._lock = threading.Lock()

    @property
    def specializations(self) -> tuple[Specialization, ...]:
        """What became of the shapes that were hot."""
        return () if self.hot is None else self.hot.records

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Runs the engine for the shapes of the inputs.

        Raises:
            PlanError: Wrong number, dtype or device of inputs.
            ShapeOutOfProfile: No engine takes these shapes.
        """
        shapes = tuple([tensor.shape for tensor in inputs])
        route = self._routes.get(shapes)
        if route is None:
            route = self._find(shapes)
        hot = self.hot
        if hot is not None:
            route.used = next(hot.clock)
            route.calls += 1
            if route.due is not None and route.calls >= route.due:
                hot.want(route)
        return route.engine(*inputs)

    def engine_for(self, shapes: Shapes) -> Engine:
        """The engine that a call with these shapes would run on now.

        Raises:
            ShapeOutOfProfile: None takes them.
        """
        key = tuple(map(torch.Size, shapes))
        return (self._routes.get(key) or self._find(key)).engine

    def _find(self, shapes: tuple[torch.Size, ...]) -> Route:
        if len(shapes) != self._count:
            raise PlanError(f"engine: expected {self._count} inputs, got {len(shapes)}")
        plain = tuple(map(tuple, shapes))
        chosen = next((item for item in self.candidates if item.takes(plain)), None)
        if chosen is None:
            raise self._refusal(plain)
        with self._lock:
            if len(self._routes) >= _ROUTES:
                self._routes = {key: route for key, route in self._routes.items() if route.is_kept}
            # Shapes without a dynamic dimension in the engine that takes them need no other one.
            due = None if self.hot is None or chosen.extent == 1 else self.hot.after
            return self._routes.setdefault(shapes, Route(plain, chosen.engine, due))

    def _refusal(self, shapes: Shapes) -> ShapeOutOfProfile:
        """What each candidate has against the shapes."""
        reasons = []
        for item in self.candidates:
            try:
                item.rules.output_shapes(shapes)
            except ShapeOutOfProfile as error:
                reasons.append((item.name, error))
        if len(reasons) < len(self.candidates):
            raise InternalError(f"profiles take the shapes {shown(shapes)} now, but did not before")
        if len(reasons) == 1:
            return reasons[0][1]
        each = "\n".join(f"  profile {name}: {str(error).splitlines()[0]}" for name, error in reasons)
        return ShapeOutOfProfile(f"no profile takes these shapes:\n{each}\n  fix: compile again with a profile that holds them")
