"""Which engine runs the engine segments of a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.fx
from torch.utils._pytree import tree_leaves

from torchkiln.determinism import deterministically
from torchkiln.logs import warn_once
from torchkiln_core import BuildError, BuildOptions, Network, Plan, RuntimeOptions
from torchkiln_core.stages import Engine
from torchkiln_runtime import ContextSettings, ReferenceEngine, TensorRTLoader, find_library, gpu_support

EngineKind = Literal["tensorrt", "reference"]


@dataclass(frozen=True, slots=True)
class EngineLoader:
    """Loads engines of one kind onto one device.

    Attributes:
        kind: Which engine runs the segments.
        device: Where.
        settings: How TensorRT engines run.
        required: Whether nothing may run in their place.
    """

    kind: EngineKind
    device: torch.device
    settings: ContextSettings
    required: bool = False

    def load(self, network: Network, plans: Sequence[Plan]) -> Engine:
        """The engine of a network; a TensorRT engine runs the first plan.

        Raises:
            PlanError: The plan does not run here.
        """
        if self.kind == "reference":
            return ReferenceEngine(network)
        return TensorRTLoader(self.device, settings=self.settings).load(plans[0])


def spare_of(network: Network, build: BuildOptions) -> Callable[[], Engine]:
    """Makes the reference engine of a network, as reproducible as the engines that ``build`` makes."""

    def make() -> Engine:
        engine = ReferenceEngine(network)
        return deterministically(engine) if build.deterministic else engine

    return make


def context_settings(options: RuntimeOptions) -> ContextSettings:
    """How TensorRT engines run by these options."""
    return ContextSettings(options.cuda_graphs, options.kernel_specialization)


def choose_engine(options: RuntimeOptions, build: BuildOptions, device: torch.device) -> EngineKind:
    """The engine for a program on ``device``; says once per reason when ``auto`` falls back to the reference.

    Raises:
        BuildError: ``engine="tensorrt"`` where no library is installed, the program is not on a GPU, or the library refuses the GPU.
    """
    if options.engine == "reference":
        return "reference"
    reason = _obstacle(build, device)
    if reason is None:
        return "tensorrt"
    if options.engine == "tensorrt":
        raise BuildError(
            f"engine='tensorrt': {reason}",
            fix="move the model and its arguments to a supported NVIDIA GPU, install torchkiln[rtx] or torchkiln[tensorrt], "
            "or use engine='reference'",
        )
    warn_once(f"{reason}: engine segments run on the reference engine, layer by layer in PyTorch, which is right but not fast")
    return "reference"


def device_of(module: torch.fx.GraphModule) -> torch.device:
    """The device that a program runs on: the first GPU that a tensor of its graph is on, else the CPU.

    What it computes counts too: a program without inputs and weights may make all its tensors on a GPU, or move its inputs there.
    """
    values = (leaf for node in module.graph.nodes for leaf in tree_leaves(node.meta.get("val")))
    devices = (value.device for value in values if isinstance(value, torch.Tensor))
    return next((device for device in devices if device.type == "cuda"), torch.device("cpu"))


def _obstacle(build: BuildOptions, device: torch.device) -> str | None:
    library = find_library(build.library)
    if library is None:
        return f"{build.library} is not installed" if build.library else "no TensorRT library is installed"
    if device.type != "cuda":
        return f"the program runs on {device}"
    return gpu_support(library, device, build)
