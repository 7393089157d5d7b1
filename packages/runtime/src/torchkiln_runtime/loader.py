"""The plan loader: a plan to an engine on one GPU."""

from __future__ import annotations

from pathlib import Path

import torch

from torchkiln_core import InternalError, Plan, PlanError, PlanTargetMismatch
from torchkiln_runtime.contexts import ContextSettings
from torchkiln_runtime.engine import TensorRTEngine
from torchkiln_runtime.host_memory import page_out
from torchkiln_runtime.kiln_file.tensor_bytes import memory_of
from torchkiln_runtime.library import Library, find_library
from torchkiln_runtime.precision import check_tf32
from torchkiln_runtime.runtime_cache import RuntimeCacheFile

_FIX = "compile again on this machine, or for it by targets=; a saved program rebuilds its plans with rebuild='auto'"
_DEFAULTS = ContextSettings()


class TensorRTLoader:
    """Loads plans.

    Args:
        device: The GPU; by default torch's current one at each load.
        library: TensorRT; by default the one that the plan is for.
        runtime_cache: Directory in which kernels that TensorRT-RTX compiles at first use are kept between processes.
        settings: How engines run.
    """

    def __init__(
        self,
        device: torch.device | None = None,
        library: Library | None = None,
        runtime_cache: Path | None = None,
        settings: ContextSettings = _DEFAULTS,
    ) -> None:
        self._device = device
        self._library = library
        self._runtime_cache = runtime_cache
        self._settings = settings

    def load(self, plan: Plan) -> TensorRTEngine:
        """Makes an engine.

        Raises:
            PlanTargetMismatch: The plan is for another library, version or GPU.
            PlanError: No GPU is at hand, or this process already uses the other ``allow_tf32`` than the plan.
        """
        library = self._find(plan)
        if not torch.cuda.is_available():
            raise PlanError(f"plan for {plan.target}: torch sees no NVIDIA GPU on this machine", fix='run with engine="reference"')
        check_tf32(library, plan.allow_tf32, PlanError)
        device = self._resolve_device()
        with torch.cuda.device(device), library.messages.collect("torchkiln.runtime") as log:
            runtime = library.module.Runtime(library.logger)
            engine = None if runtime is None else runtime.deserialize_cuda_engine(_bytes_of(plan))
            page_out(plan.data)
            if engine is None:
                here = f"{library.name} {library.version} on {torch.cuda.get_device_name(device)} ({_capability(device)})"
                raise PlanTargetMismatch(f"plan for {plan.target}: refused by {here}\n{log.text}", fix=_FIX)
            cache = None if self._runtime_cache is None else RuntimeCacheFile(self._runtime_cache, plan.key)
            return TensorRTEngine(plan, library, (runtime, engine), device, cache, self._settings)

    def _find(self, plan: Plan) -> Library:
        target = plan.target
        library = self._library or find_library(target.library)
        if library is None:
            other = find_library()
            here = "none is installed" if other is None else f"{other.name} {other.version} is installed"
            raise PlanTargetMismatch(f"plan for {target}: needs {target.library}, but {here}", fix=_FIX)
        if (library.name, library.version) != (target.library, target.version):
            raise PlanTargetMismatch(
                f"plan for {target}: {library.name} {library.version} is in use here, and plans load in the version that built them only",
                fix=f"install {target.library} {target.version}, or {_FIX}",
            )
        return library

    def _resolve_device(self) -> torch.device:
        device = self._device or torch.device("cuda")
        if device.type != "cuda":
            raise PlanError(f"TensorRT engines run on NVIDIA GPUs, not on {device}", fix="load on a cuda device")
        return torch.empty(0, device=device).device


def _capability(device: torch.device) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def _bytes_of(plan: Plan) -> memoryview:
    """The serialized engine, not a copy."""
    data = plan.data
    if data.dtype is not torch.uint8 or data.device.type != "cpu" or not data.is_contiguous():
        raise InternalError(f"plan: expected contiguous uint8 data on the host, got {data.dtype} on {data.device}")
    return memory_of(data)
