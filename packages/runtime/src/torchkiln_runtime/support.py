"""Whether a GPU can run plans of a library."""

from __future__ import annotations

import functools

import torch

from torchkiln_core import BuildError, BuildOptions, KilnError, Network
from torchkiln_core.layers import Unary, UnaryOp
from torchkiln_runtime.builder import TensorRTBuilder
from torchkiln_runtime.library import Library
from torchkiln_runtime.loader import TensorRTLoader
from torchkiln_runtime.precision import effective_tf32, tf32_of_process

_OLDEST = (7, 5)
"""The first compute capability (Turing) that both libraries still support."""
_DEFAULTS = BuildOptions()


def gpu_support(library: Library | None, device: torch.device | None = None, options: BuildOptions = _DEFAULTS) -> str | None:
    """Why ``device`` (by default torch's current GPU) cannot run plans of ``library``; ``None`` when it can.

    It may build a small plan to find out, which decides on TF32 for the process if nothing has yet: ``options`` says how.
    """
    if library is None:
        return "neither TensorRT-RTX nor TensorRT is installed"
    if not torch.cuda.is_available():
        return "torch sees no NVIDIA GPU on this machine"
    if device is not None and device.type != "cuda":
        return f"{library.name} runs on NVIDIA GPUs, not on {device}"
    index = torch.empty(0, device=device or "cuda").device.index
    capability = torch.cuda.get_device_capability(index)
    if capability < _OLDEST:
        return (
            f"{library.name} needs compute capability 7.5 or later, {torch.cuda.get_device_name(index)} has {capability[0]}.{capability[1]}"
        )
    if f"sm_{capability[0]}{capability[1]}" in library.named_targets():
        return None
    return _probe(library, index, tf32_of_process(library, effective_tf32(library, bool(options.allow_tf32))))


@functools.cache
def _probe(library: Library, index: int, allow_tf32: bool) -> str | None:
    """Builds and loads a plan of one layer: a library may or may not run on a GPU that has no target name of its own."""
    network = Network()
    network.output("y", network.add(Unary(UnaryOp.ABS), network.input("x", torch.float32, (1,))))
    try:
        with torch.cuda.device(index):
            plan = TensorRTBuilder(BuildOptions(allow_tf32=allow_tf32), library).build(network)
            TensorRTLoader(torch.device("cuda", index), library).load(plan)
    except BuildError as error:
        return error.message
    except KilnError as error:
        return str(error)
    return None
