"""The TensorRT engine: a loaded plan on one GPU."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch

from torchkiln_core import InternalError, Plan, PlanError
from torchkiln_runtime.adapter import input_name, output_name
from torchkiln_runtime.contexts import Context, ContextFactory, ContextSettings, new_event
from torchkiln_runtime.inputs import ALIGNMENT, KnownInputs, check_inputs, static_shapes
from torchkiln_runtime.library import Library
from torchkiln_runtime.ones import Ones
from torchkiln_runtime.replays import Replays, ReplaysByShapes
from torchkiln_runtime.results import ResultForm
from torchkiln_runtime.runtime_cache import RuntimeCacheFile
from torchkiln_runtime.scratch import Scratch, scratch_of
from torchkiln_runtime.shapes import Range, ShapeRules, Shapes

_PLAIN_CONTEXTS = 4
"""Plain contexts of a kind that an engine has at most, each ready for the shapes that it ran last."""


class _Contexts:
    """Plain contexts by the shapes that they are ready for.

    Args:
        make: Makes one.
    """

    def __init__(self, make: Callable[[], Context]) -> None:
        self.make = make
        self.ready: OrderedDict[Shapes, Context] = OrderedDict()

    def prepare(self, shapes: Shapes, output_shapes: Shapes) -> Context:
        """One for shapes that none is ready for: a new one, or the one that has waited longest. It is ready once it has run."""
        context = self.make() if len(self.ready) < _PLAIN_CONTEXTS else self.ready.popitem(last=False)[1]
        context.prepare(shapes, output_shapes)
        return context


@dataclass(slots=True)
class _Lane:
    """What a stream of the caller's runs on.

    On the legacy default stream TensorRT would synchronise, so a stream of our own stands in for it between two events.
    """

    stream: torch.cuda.Stream
    events: tuple[torch.cuda.Event, torch.cuda.Event] | None
    replays: ReplaysByShapes
    scratch: Scratch
    graphed: Context | None = None

    @contextmanager
    def ordered(self) -> Iterator[torch.cuda.Stream]:
        """The stream to run on, after the caller's work so far and before what follows."""
        if self.events is not None:
            self.events[0].record()
            self.stream.wait_event(self.events[0])
        yield self.stream
        if self.events is not None:
            self.events[1].record(self.stream)
            self.events[1].wait()


class TensorRTEngine:
    """Runs a plan on the current stream, without synchronising. Threads may share an engine.

    The first run with new shapes launches kernels one by one; later ones use the library's CUDA graphs, which are captured per stream.
    Where shapes are static, or kernels are not replaced while the program runs, calls with shapes and addresses seen before replay a graph
    of ours: that needs no stream of its own and half the host time.
    In the capture of a ``torch.cuda.CUDAGraph`` an engine launches kernels one by one, in memory of that graph, from a context that
    nothing else uses afterwards; such shapes must have run once before.

    Args:
        plan: The plan.
        library: TensorRT.
        loaded: The ``Runtime``, which must outlive its engine, and the ``ICudaEngine``.
        device: The GPU.
        cache: Where compiled kernels are kept between processes.
        settings: How contexts run.
    """

    kind: Literal["tensorrt"] = "tensorrt"

    def __init__(
        self,
        plan: Plan,
        library: Library,
        loaded: tuple[Any, Any],
        device: torch.device,
        cache: RuntimeCacheFile | None,
        settings: ContextSettings,
    ) -> None:
        self.inputs, self.outputs = plan.inputs, plan.outputs
        self.device = device
        self._runtime, engine = loaded
        _check_bindings(plan, library, engine)
        ranges = [_range_of(plan, engine, index) for index in range(len(plan.inputs))]
        specialized = settings.specialization != "none"
        ones = Ones(plan.inputs, plan.symbols, ranges, plan.inner_sizes if specialized else ())
        self._needs_general = functools.lru_cache(maxsize=1024)(ones.among)
        rules = ShapeRules(plan.inputs, plan.outputs, plan.symbols, ranges)
        dtypes = tuple(binding.dtype for binding in plan.outputs)

        def known_at(shapes: Shapes) -> KnownInputs:
            return KnownInputs.of(plan.inputs, shapes, device, ResultForm.of(rules.output_shapes(shapes), dtypes))

        self._known_at = functools.lru_cache(maxsize=1024)(known_at)
        self._factory = ContextFactory(plan, library, engine, cache, settings)
        self._static = static_shapes(plan.inputs)
        # Of the last call, where shapes differ by call.
        self._known = None if self._static is None else self._known_at(self._static)
        self._graphs = settings.cuda_graphs == "auto"
        # A graph of ours would run on with general kernels when those for its sizes are ready.
        self._replays = self._graphs and (self._static is not None or settings.specialization != "lazy")
        self._lock = threading.Lock()
        self._lanes: dict[int, _Lane] = {}
        self._plain = _Contexts(self._factory.plain)
        self._general = _Contexts(self._factory.general)
        self._captured: dict[Shapes, Context] = {}
        # TensorRT wants an address for tensors without elements too, where torch has none.
        self._nothing = torch.empty(ALIGNMENT, dtype=torch.uint8, device=device)
        self._nothing_address = self._nothing.data_ptr()

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Enqueues a run on the current stream of the engine's GPU.

        Raises:
            PlanError: Wrong number, dtype or device of inputs, or shapes captured in a CUDA graph that have not run before.
            ShapeOutOfProfile: A size outside what the plan was built for.
            BuildError: TensorRT fails in the first run at these sizes, for which it compiles kernels.
            InternalError: It fails later, or contradicts the record.
        """
        known = self._known
        sources = None if known is None else known.addresses(inputs)
        if known is None or sources is None:
            check_inputs(self.inputs, inputs, self.device)
            known = self._known = self._known_at(tuple([tuple(tensor.shape) for tensor in inputs]))
            # Lives until the run is enqueued: torch may give the memory of a copy to what is enqueued behind it only.
            ready = [_ready(tensor) for tensor in inputs]
            sources = [tensor.data_ptr() or self._nothing_address for tensor in ready]
        if torch._C._cuda_getDevice() == self.device.index:
            return self._run(sources, known)
        with torch.cuda.device(self.device):
            return self._run(sources, known)

    @property
    def in_captured_graphs(self) -> bool:
        """Whether a ``torch.cuda.CUDAGraph`` holds a run, and so must not outlive the engine."""
        with self._lock:
            return bool(self._captured)

    def warm_up(self) -> None:
        """Runs an engine of static shapes once, on zeros and a stream of its own, and waits: kernels are compiled and loaded then.

        Raises:
            BuildError: TensorRT fails.
        """
        if self._static is None:
            return
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        with torch.cuda.device(self.device), torch.cuda.stream(stream):
            self(*(torch.zeros(shape, dtype=dtype, device=self.device) for dtype, shape in self._known_at(self._static).expected))
            stream.synchronize()

    def _run(self, sources: list[int], known: KnownInputs) -> tuple[torch.Tensor, ...]:
        nothing = self._nothing_address
        outputs = known.results.allocate()
        sinks = [tensor.data_ptr() or nothing for tensor in outputs]
        if sinks.count(nothing) == len(sinks):
            return outputs
        with self._lock:
            if torch.cuda.is_current_stream_capturing():
                context = self._context_for_capture(known.shapes)
                context.run_with_workspace(sources, sinks, torch.cuda.current_stream(self.device))
            else:
                self._run_in_lane(known.shapes, known.results.shapes, sources, sinks)
        return outputs

    def _run_in_lane(self, shapes: Shapes, output_shapes: Shapes, sources: list[int], sinks: list[int]) -> None:
        handle = torch._C._cuda_getCurrentRawStream(self.device.index)
        lane = self._lanes.get(handle) or self._new_lane(handle)
        if self._replays and self._replayed(lane, shapes, sources, sinks):
            return
        contexts = self._contexts_for(shapes)
        # The library would give its own graphs kernels for the sizes.
        one_by_one = not self._graphs or contexts is self._general
        with lane.ordered() as stream:
            if one_by_one and shapes in contexts.ready:
                contexts.ready[shapes].run_with_workspace(sources, sinks, stream)
            elif shapes not in contexts.ready and (one_by_one or shapes not in self._captured):
                with self._factory.first_run():
                    context = contexts.prepare(shapes, output_shapes)
                    context.run_with_workspace(sources, sinks, stream)
                    contexts.ready[shapes] = context
                self._factory.ran_new_shapes()
            else:
                if lane.graphed is None:
                    lane.graphed = self._factory.graphed()
                lane.graphed.prepare(shapes, output_shapes)
                lane.graphed.run(sources, sinks, stream)

    def _replayed(self, lane: _Lane, shapes: Shapes, sources: list[int], sinks: list[int]) -> bool:
        """Replays the graph of these addresses, or runs and captures it when it is worth that; ``False`` when neither."""
        replays = lane.replays.at(shapes)
        if replays is None:
            return False
        addresses = (*sources, *sinks)
        with lane.scratch.lock:
            if replays.replay(addresses):
                return True
            if not replays.wants(addresses) or (shapes not in self._contexts_for(shapes).ready and shapes not in self._captured):
                return False
            with lane.ordered() as stream, self._factory.first_run():
                replays.run_and_capture(sources, sinks, stream)
        return True

    def _new_lane(self, handle: int) -> _Lane:
        scratch = scratch_of(self.device, handle)
        if self._replays:
            scratch.reserve(self._factory.workspace_bytes)
        replays = ReplaysByShapes(lambda shapes: Replays(functools.partial(self._context_at, shapes), self.device, scratch))
        if handle == 0:
            lane = _Lane(torch.cuda.Stream(self.device), (new_event(), new_event()), replays, scratch)  # type: ignore[no-untyped-call]
        else:
            lane = _Lane(torch.cuda.current_stream(self.device), None, replays, scratch)
        self._lanes[handle] = lane
        return lane

    def _contexts_for(self, shapes: Shapes) -> _Contexts:
        return self._general if self._needs_general(shapes) else self._plain

    def _context_at(self, shapes: Shapes) -> Context:
        """A new plain context that is ready for these shapes."""
        context = self._contexts_for(shapes).make()
        context.prepare(shapes, self._known_at(shapes).results.shapes)
        return context

    def _context_for_capture(self, shapes: Shapes) -> Context:
        """The plain context that is ready for these shapes; from now on it belongs to captured graphs alone."""
        if shapes not in self._captured:
            ready = self._contexts_for(shapes).ready
            if shapes not in ready:
                shown = ", ".join(str(list(shape)) for shape in shapes)
                raise PlanError(
                    f"engine: CUDA graph capture with input shapes {shown}, which have not run since this engine was loaded",
                    fix="call the compiled program once with these shapes, outside of the capture, right before it",
                )
            self._captured[shapes] = ready.pop(shapes)
        return self._captured[shapes]


def _ready(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as TensorRT takes it: contiguous and aligned."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.detach().clone()


def _check_bindings(plan: Plan, library: Library, engine: Any) -> None:
    """Raises ``InternalError`` unless the engine has the plan's tensors, all on the GPU."""
    names = [*map(input_name, range(len(plan.inputs))), *map(output_name, range(len(plan.outputs)))]
    found = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}
    if found != set(names):
        raise InternalError(f"plan for {plan.target}: expected the tensors {', '.join(names)}, the engine has {', '.join(sorted(found))}")
    for name, binding in zip(names, (*plan.inputs, *plan.outputs), strict=True):
        if engine.get_tensor_dtype(name) != library.dtype(binding.dtype):
            raise InternalError(f"binding {binding.name}: expected {binding.dtype}, the engine has {engine.get_tensor_dtype(name)}")
        if engine.get_tensor_location(name) != library.module.TensorLocation.DEVICE:
            raise InternalError(f"binding {binding.name}: expected a tensor on the GPU, the engine wants it on the host")


def _range_of(plan: Plan, engine: Any, index: int) -> Range:
    """Smallest and largest shape of an input."""
    shape = plan.inputs[index].shape
    static = tuple(size for size in shape if isinstance(size, int))
    if len(static) == len(shape):
        return static, static
    low, _, high = engine.get_tensor_profile_shape(input_name(index), 0)
    return tuple(low), tuple(high)
