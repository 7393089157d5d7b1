"""Execution contexts: what TensorRT runs an engine with."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

from torchkiln_core import BuildError, InternalError, Plan, PlanError
from torchkiln_runtime.adapter import input_name, output_name
from torchkiln_runtime.host_memory import return_freed
from torchkiln_runtime.library import Library
from torchkiln_runtime.precision import tf32_scope
from torchkiln_runtime.runtime_cache import RuntimeCacheFile
from torchkiln_runtime.shapes import Shapes

KernelSpecialization: TypeAlias = Literal["eager", "lazy", "none"]
"""When kernels for the sizes of a dynamic engine are compiled: before the first run, meanwhile general ones run, or never."""

_KEEP_OUT = "keep the calls that the message hints at in PyTorch by torch_executed_ops=, or compile in another dtype"


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """How the contexts of an engine run.

    Attributes:
        cuda_graphs: ``"off"`` launches kernels one by one in every run.
        specialization: When TensorRT-RTX compiles kernels for the sizes of a dynamic engine; other libraries never do.
    """

    cuda_graphs: Literal["auto", "off"] = "auto"
    specialization: KernelSpecialization = "eager"


def new_event() -> torch.cuda.Event:
    """An event that orders streams and takes no time."""
    return torch.cuda.Event()  # type: ignore[no-untyped-call]


class Context:
    """One execution context, which one thread uses at a time.

    Args:
        raw: The ``IExecutionContext``.
        plan: Its plan.
        library: TensorRT.
        workspace_bytes: Size of the scratch memory that each run gets from torch's allocator; ``None`` when the context has its own.
    """

    def __init__(self, raw: Any, plan: Plan, library: Library, workspace_bytes: int | None) -> None:
        self._raw = raw
        self._plan = plan
        self._library = library
        self._workspace_bytes = workspace_bytes
        self._dynamic = [index for index, binding in enumerate(plan.inputs) if not all(isinstance(size, int) for size in binding.shape)]
        self._input_names = [input_name(index) for index in range(len(plan.inputs))]
        self._output_names = [output_name(index) for index in range(len(plan.outputs))]
        self._done = new_event()
        self._last_stream: int | None = None
        self._has_run = False
        self._workspace: torch.Tensor | None = None
        self.shapes: Shapes | None = None

    def use_workspace(self, workspace: torch.Tensor) -> None:
        """Takes scratch memory for all runs to come, so that ``run`` serves: uint8 ``[N]``, at least as large as needed."""
        self._workspace = workspace
        if self._workspace_bytes:
            self._raw.set_device_memory(workspace.data_ptr(), self._workspace_bytes)

    def prepare(self, shapes: Shapes, output_shapes: Shapes) -> None:
        """Sets the shapes of the inputs, if they differ from the last ones, and compares what TensorRT infers for the outputs.

        Raises:
            InternalError: TensorRT refuses a shape, or infers another output than the record.
        """
        if shapes == self.shapes:
            return
        self.shapes = None
        self._has_run = False
        for index in self._dynamic:
            if not self._raw.set_input_shape(self._input_names[index], shapes[index]):
                raise InternalError(f"input {self._plan.inputs[index].name}: TensorRT refuses shape {list(shapes[index])}\n{self._said()}")
        for binding, name, ours in zip(self._plan.outputs, self._output_names, output_shapes, strict=True):
            theirs = tuple(self._raw.get_tensor_shape(name))
            if theirs != ours:
                raise InternalError(
                    f"output {binding.name}: the record has shape {list(ours)}, TensorRT infers {list(theirs)}\n{self._said()}"
                )
        self.shapes = shapes

    def run(self, inputs: list[int], outputs: list[int], stream: torch.cuda.Stream) -> None:
        """Enqueues a run on ``stream`` with the addresses of inputs and outputs.

        Raises:
            BuildError: TensorRT does not run the first time at these shapes: it compiles kernels then, or finds that it has none.
            InternalError: It does not later.
        """
        raw = self._raw
        for name, address in zip(self._input_names, inputs, strict=True):
            raw.set_tensor_address(name, address)
        for name, address in zip(self._output_names, outputs, strict=True):
            raw.set_tensor_address(name, address)
        if not raw.execute_async_v3(stream.cuda_stream):
            message = f"engine: {self._library.name} did not run\n{self._said()}"
            raise InternalError(message) if self._has_run else BuildError(message, fix=_KEEP_OUT)
        self._has_run = True

    def run_with_workspace(self, inputs: list[int], outputs: list[int], stream: torch.cuda.Stream) -> None:
        """As ``run``, in scratch memory of torch's allocator: in a CUDA graph capture that is memory of the graph.

        The caller's current stream orders the reuse of that memory, so ``stream`` is it, or it waits for ``stream``.
        """
        capturing = torch.cuda.is_current_stream_capturing()
        if not capturing and self._last_stream not in (None, stream.cuda_stream):
            stream.wait_event(self._done)
        if self._workspace_bytes:
            workspace = torch.empty(self._workspace_bytes, dtype=torch.uint8, device=stream.device)
            self._raw.set_device_memory(workspace.data_ptr(), self._workspace_bytes)
        self.run(inputs, outputs, stream)
        if not capturing:
            self._done.record(stream)
            self._last_stream = stream.cuda_stream

    def _said(self) -> str:
        return "\n".join(f"    {error}" for error in self._library.messages.recent)


class ContextFactory:
    """Makes the contexts of one engine, which share the kernels that TensorRT-RTX compiles.

    Args:
        plan: The plan.
        library: TensorRT.
        engine: The ``ICudaEngine``.
        cache: Where compiled kernels are kept between processes.
        settings: How contexts run.
    """

    def __init__(self, plan: Plan, library: Library, engine: Any, cache: RuntimeCacheFile | None, settings: ContextSettings) -> None:
        self._settings = settings
        self._plan = plan
        self._library = library
        self._engine = engine
        self._file = cache
        self._kernels: Any = None
        self._runs = 0

    @property
    def workspace_bytes(self) -> int:
        """Scratch memory that a run needs."""
        return int(self._engine.device_memory_size_v2)

    def plain(self) -> Context:
        """A context that launches kernels one by one, in scratch memory that the caller provides."""
        return Context(self._create("DISABLED", self._settings.specialization), self._plan, self._library, self.workspace_bytes)

    def general(self) -> Context:
        """As ``plain``, with kernels for all sizes only."""
        return Context(self._create("DISABLED", "none"), self._plan, self._library, self.workspace_bytes)

    def graphed(self) -> Context:
        """A context that captures its kernels in a CUDA graph where the library can, with scratch memory of its own."""
        return Context(self._create("WHOLE_GRAPH_CAPTURE", self._settings.specialization), self._plan, self._library, None)

    def first_run(self) -> AbstractContextManager[None]:
        """Surrounds the first run with new shapes, for which kernels are compiled."""
        return tf32_scope(self._library, self._plan.allow_tf32, PlanError)

    def ran_new_shapes(self) -> None:
        """Keeps what was compiled so far for the next process, and frees what that took, ever less often: kernels repeat between shapes."""
        self._runs += 1
        if self._runs.bit_count() != 1:
            return
        return_freed()
        if self._file is not None and self._kernels is not None:
            self._file.write_from(self._kernels)

    def _create(self, graphs: Literal["DISABLED", "WHOLE_GRAPH_CAPTURE"], specialization: KernelSpecialization) -> Any:
        trt = self._library.module
        strategies = trt.ExecutionContextAllocationStrategy
        strategy = strategies.USER_MANAGED if graphs == "DISABLED" else strategies.STATIC
        with self._library.messages.collect("torchkiln.runtime") as log, tf32_scope(self._library, self._plan.allow_tf32, PlanError):
            if hasattr(self._engine, "create_runtime_config"):
                config = self._engine.create_runtime_config()
                config.set_execution_context_allocation_strategy(strategy)
                if hasattr(config, "cuda_graph_strategy"):
                    config.cuda_graph_strategy = getattr(trt.CudaGraphStrategy, graphs)
                if hasattr(config, "dynamic_shapes_kernel_specialization_strategy"):
                    strategies_of = trt.DynamicShapesKernelSpecializationStrategy
                    config.dynamic_shapes_kernel_specialization_strategy = getattr(strategies_of, specialization.upper())
                self._share_kernels(config)
                raw = self._engine.create_execution_context(config)
            else:
                raw = self._engine.create_execution_context(strategy)
            if raw is None:
                raise BuildError(
                    f"engine: expected {self._library.name} to compile kernels for {torch.cuda.get_device_name()}, got no execution context"
                    f"\n{log.text}",
                    fix=_KEEP_OUT,
                )
        return raw

    def _share_kernels(self, config: Any) -> None:
        if not hasattr(config, "create_runtime_cache"):
            return
        if self._kernels is None:
            self._kernels = config.create_runtime_cache()
            if self._file is not None and self._kernels is not None:
                self._file.read_into(self._kernels)
        if self._kernels is not None:
            config.set_runtime_cache(self._kernels)
