"""``Plan``: a serialized engine and all that is needed to run it or refuse it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torchkiln_core.size import Size


@dataclass(frozen=True, slots=True)
class Binding:
    """An input or output of an engine: name, dtype, and shape ``[*]`` as expressions over the input symbols."""

    name: str
    dtype: torch.dtype
    shape: tuple[Size, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """What a plan was built for: library (``tensorrt_rtx`` or ``tensorrt``), its version, and compute capabilities (``sm_89``).

    ``gpus`` is ``("current",)`` for a plan tied to the GPU it was built on.
    """

    library: str
    version: str
    gpus: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.library} {self.version} for {', '.join(self.gpus)}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A serialized engine.

    Attributes:
        data: The serialized engine, uint8 ``[size]`` on the host.
        inputs: Bindings that the caller fills, in order.
        outputs: Bindings that the engine fills, in order.
        symbols: For each free symbol, the index of an input and of its dimension that carries it.
        target: What it was built for.
        key: Hash of the network record, the options that enter it and the target.
        build_ms: Time that the builder took.
        allow_tf32: Whether fp32 products may use TF32. TensorRT-RTX has one such mode in a process and refuses plans of the other.
        profile: Name of the profile that it was built for; empty for the whole range of the program.
        inner_sizes: Sizes of batched products and softmaxes inside, but for batches, that depend on the inputs and may be 1.
    """

    data: torch.Tensor
    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]
    symbols: tuple[tuple[str, int, int], ...]
    target: Target
    key: str
    build_ms: float
    allow_tf32: bool
    profile: str = ""
    inner_sizes: tuple[Size, ...] = ()
