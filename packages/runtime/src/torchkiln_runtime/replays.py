"""CUDA graphs of an engine: one for each set of addresses that keeps coming back, at shapes that do."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

from torchkiln_core import InternalError
from torchkiln_runtime.contexts import Context
from torchkiln_runtime.scratch import Scratch
from torchkiln_runtime.shapes import Shapes

_Key = TypeVar("_Key")
_log = logging.getLogger("torchkiln.runtime")

Addresses = tuple[int, ...]
"""Of the inputs, then of the outputs."""

_GRAPHS = 8
"""Graphs of a stream at most; torch's allocator gives a program that calls in a loop the same few addresses."""
_SIGHTINGS = 2
"""Calls with the same addresses after which they are captured, while there is room."""
_SIGHTINGS_TO_REPLACE = 32
"""The same when another graph must go: capturing costs milliseconds, so addresses that never settle must not cause it."""
_SHAPES = 4
"""Sets of shapes of a stream at most that have a context for their graphs."""
_WATCHED = 256
"""Sets of addresses, or of shapes, whose calls are counted."""


class _Sightings(Generic[_Key]):
    """How often each of the last few keys was seen."""

    def __init__(self) -> None:
        self._counts: OrderedDict[_Key, int] = OrderedDict()

    def count(self, key: _Key) -> int:
        """Adds one, and returns how many it is by now."""
        seen = self._counts.pop(key, 0) + 1
        self._counts[key] = seen
        if len(self._counts) > _WATCHED:
            self._counts.popitem(last=False)
        return seen

    def forget(self, key: _Key) -> None:
        """Starts anew."""
        self._counts.pop(key, None)

    def set(self, key: _Key, seen: int) -> None:
        """As if it had been seen so often."""
        self._counts[key] = seen


class ReplaysByShapes:
    """The replays of one stream at each set of shapes that has some.

    Args:
        make: Makes replays at some shapes; they hold nothing until the first capture.
    """

    def __init__(self, make: Callable[[Shapes], Replays]) -> None:
        self._make = make
        self._of: OrderedDict[Shapes, Replays] = OrderedDict()
        self._seen: _Sightings[Shapes] = _Sightings()

    def at(self, shapes: Shapes) -> Replays | None:
        """The replays at these shapes; ``None`` while there is no room and others come more often."""
        found = self._of.get(shapes)
        if found is not None:
            self._of.move_to_end(shapes)
            return found
        if len(self._of) >= _SHAPES:
            if self._seen.count(shapes) < _SIGHTINGS_TO_REPLACE:
                return None
            self._seen.forget(shapes)
            self._of.popitem(last=False)[1].finish()
        made = self._of[shapes] = self._make(shapes)
        return made


class Replays:
    """Captures and replays on behalf of one stream, at one set of shapes.

    A graph reads and writes the addresses that it was captured with, so it is replayed only for live tensors at these addresses: nothing is
    copied, and no tensor is kept alive. All graphs share one context and the scratch memory of the stream.

    Args:
        make_context: Makes a plain context that is ready for the shapes, and that nothing else uses.
        device: The GPU.
        scratch: Memory for the context; who calls ``replay`` or ``run_and_capture`` holds its lock.
    """

    def __init__(self, make_context: Callable[[], Context], device: torch.device, scratch: Scratch) -> None:
        self._make_context = make_context
        self._device = device
        self._scratch = scratch
        self._workspace: torch.Tensor | None = None
        self._context: Context | None = None
        self._side: torch.cuda.Stream | None = None
        self._graphs: OrderedDict[Addresses, torch.cuda.CUDAGraph] = OrderedDict()
        self._seen: _Sightings[Addresses] = _Sightings()
        self._works = True

    def replay(self, addresses: Addresses) -> bool:
        """Replays the graph of these addresses on the current stream; ``False`` when there is none."""
        graph = self._graphs.get(addresses)
        if graph is None:
            return False
        if self._workspace is not self._scratch.memory():
            self._forget()
            return False
        self._graphs.move_to_end(addresses)
        graph.replay()
        return True

    def wants(self, addresses: Addresses) -> bool:
        """Counts a call that was not replayed; whether it should be captured."""
        count = self._seen.count(addresses)
        return self._works and count >= (_SIGHTINGS if len(self._graphs) < _GRAPHS else _SIGHTINGS_TO_REPLACE)

    def run_and_capture(self, inputs: list[int], outputs: list[int], stream: torch.cuda.Stream) -> None:
        """Runs once on ``stream``, launching kernels one by one, and captures the same for later calls.

        Raises:
            BuildError: TensorRT does not run.
        """
        if self._context is None:
            self._context = self._make_context()
        workspace = self._scratch.memory()
        if self._workspace is not workspace:
            self._forget()
            self._workspace = workspace
            self._context.use_workspace(workspace)
        # Besides this call's results, this is where the library sets up what must not happen in a capture.
        self._context.run(inputs, outputs, stream)
        stream.synchronize()
        addresses = (*inputs, *outputs)
        try:
            graph = self._capture(self._context, inputs, outputs)
        except (RuntimeError, InternalError) as error:
            self._works = False
            _log.warning("engine: no CUDA graphs of its calls, for the capture failed: %s", error)
            return
        self._seen.forget(addresses)
        if len(self._graphs) >= _GRAPHS:
            self._graphs.popitem(last=False)
        self._graphs[addresses] = graph

    def finish(self) -> None:
        """Waits for the current stream, whose last replays may still use the context, before that is given up."""
        if self._context is not None:
            torch.cuda.current_stream(self._device).synchronize()

    def _forget(self) -> None:
        """Drops all graphs, for they use memory that the stream no longer does; a call with their addresses is captured at once."""
        for addresses in self._graphs:
            self._seen.set(addresses, _SIGHTINGS)
        self._graphs.clear()

    def _capture(self, context: Context, inputs: list[int], outputs: list[int]) -> torch.cuda.CUDAGraph:
        if self._side is None:
            self._side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._side):
            # Other threads may allocate meanwhile. torch.cuda.graph() would also collect garbage and empty the allocator's cache.
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                context.run(inputs, outputs, self._side)
            finally:
                graph.capture_end()
        return graph
