"""Which sets of shapes an engine runs often, and the static engines that are built for them meanwhile."""

from __future__ import annotations

import functools
import itertools
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Literal

from torchkiln_core.stages import Engine
from torchkiln_runtime.shapes import Shapes

_log = logging.getLogger("torchkiln.runtime")
_FAILURES = 3
"""Builds that fail in a row before no more are tried."""

State = Literal["building", "serving", "failed", "replaced"]


@dataclass(frozen=True, slots=True)
class Specialization:
    """What became of one set of hot shapes.

    Attributes:
        shapes: Of the engine's inputs.
        state: ``"building"``, ``"serving"`` (calls run on the static engine), ``"failed"``, or ``"replaced"`` by one that was used more.
        build_ms: Time from the start of the build to the swap.
        reason: Why it failed.
    """

    shapes: Shapes
    state: State
    build_ms: float = 0.0
    reason: str = ""


class Route:
    """What calls with one set of shapes run on.

    Attributes:
        engine: Replaced in one assignment, so a call sees the one or the other.
        base: The engine that takes more than these shapes.
        calls: Calls so far; threads may lose a count.
        due: At how many calls the shapes are hot; ``None`` when nothing is to be done about them.
        used: When it was used last, in calls of the dispatch.
        building: Whether a static engine is on its way.
    """

    __slots__ = ("base", "building", "calls", "due", "engine", "shapes", "used")

    def __init__(self, shapes: Shapes, base: Engine, due: int | None) -> None:
        self.shapes = shapes
        self.engine = self.base = base
        self.calls = 0
        self.due = due
        self.used = 0
        self.building = False

    @property
    def is_kept(self) -> bool:
        """Whether the route is more than a memory of where calls go."""
        return self.building or self.engine is not self.base


class HotShapes:
    """Builds static engines for hot shapes in the background, keeps some, and puts them in place of the engine that serves meanwhile.

    A build that fails changes nothing but the record of it. Threads may share it.

    Args:
        after: Calls that make shapes hot.
        limit: Static engines kept.
        build: Makes an engine for exactly these shapes, ready to run.
        executor: Runs the builds.
    """

    def __init__(self, after: int, limit: int, build: Callable[[Shapes], Engine], executor: Executor) -> None:
        self.after = after
        self.clock = itertools.count(1)
        self.on_change: Callable[[], None] | None = None
        self._limit = limit
        self._build = build
        self._executor = executor
        self._serving: list[Route] = []
        self._records: dict[Shapes, Specialization] = {}
        self._failures = 0
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)

    @property
    def records(self) -> tuple[Specialization, ...]:
        """One per set of shapes that was hot, in order."""
        with self._lock:
            return tuple(self._records.values())

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until nothing is being built; ``False`` when that takes longer than ``timeout_s``."""
        with self._idle:
            return self._idle.wait_for(lambda: all(item.state != "building" for item in self._records.values()), timeout_s)

    def want(self, route: Route) -> None:
        """Starts the build for a route that is due, unless it has begun."""
        with self._lock:
            if route.due is None:
                return
            route.due = None
            if self._failures >= _FAILURES:
                return
            route.building = True
            self._records[route.shapes] = Specialization(route.shapes, "building")
        try:
            job = self._executor.submit(self._timed, route.shapes)
        except RuntimeError as error:
            # The interpreter is shutting down.
            self._fail(route, error)
            return
        job.add_done_callback(functools.partial(self._finish, route))

    def _timed(self, shapes: Shapes) -> tuple[Engine, float]:
        start = time.perf_counter()
        engine = self._build(shapes)
        return engine, (time.perf_counter() - start) * 1e3

    def _finish(self, route: Route, job: Future[tuple[Engine, float]]) -> None:
        error = job.exception()
        if error is None:
            self._swap(route, *job.result())
        else:
            # Whatever went wrong, calls run on as before.
            self._fail(route, error)
        with self._idle:
            self._idle.notify_all()
        if self.on_change is not None:
            self.on_change()

    def _fail(self, route: Route, error: BaseException) -> None:
        reason = f"{type(error).__name__}: {error}"
        _log.warning("no static engine for %s, calls run on as before: %s", shown(route.shapes), reason)
        with self._lock:
            self._failures += 1
            route.building = False
            self._records[route.shapes] = Specialization(route.shapes, "failed", reason=reason)

    def _swap(self, route: Route, engine: Engine, build_ms: float) -> None:
        with self._lock:
            self._failures = 0
            route.building = False
            if len(self._serving) >= self._limit and not self._make_room():
                reason = "every static engine kept is in a CUDA graph"
                self._records[route.shapes] = Specialization(route.shapes, "failed", build_ms, reason)
                return
            route.used = next(self.clock)
            route.engine = engine
            self._serving.append(route)
            self._records[route.shapes] = Specialization(route.shapes, "serving", build_ms)
        _log.info("calls with shapes %s run on a static engine, built in %.0f ms", shown(route.shapes), build_ms)

    def _make_room(self) -> bool:
        """Gives the route that was unused for longest its former engine back; to be hot again it needs twice the calls."""
        free = [route for route in self._serving if not getattr(route.engine, "in_captured_graphs", False)]
        if not free:
            return False
        oldest = min(free, key=lambda route: route.used)
        self._serving.remove(oldest)
        oldest.engine = oldest.base
        oldest.due, oldest.calls = max(2 * oldest.calls, self.after), 0
        self._records[oldest.shapes] = Specialization(oldest.shapes, "replaced", self._records[oldest.shapes].build_ms)
        return True


def shown(shapes: Shapes) -> str:
    """Shapes in a message."""
    return ", ".join(str(list(shape)) for shape in shapes)
