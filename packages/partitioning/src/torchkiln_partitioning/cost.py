"""The border cost model: whether an engine segment saves more time than its border takes."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

_Key = TypeVar("_Key")
_Key_contra = TypeVar("_Key_contra", contravariant=True)


class Arithmetic(enum.Enum):
    """What decides how fast the products of a call are."""

    NARROW = "narrow"
    """Numbers of at most 16 bits."""
    MATRICES = "matrices"
    """Matrix products of wider numbers."""
    CONVOLUTIONS = "convolutions"
    """Convolutions of wider numbers, for which PyTorch allows TF32 unless told otherwise."""


class Work(Protocol[_Key_contra]):
    """What nodes take; a node stands for itself or is given by its position."""

    def bytes_of(self, node: _Key_contra, /) -> int:
        """Bytes of a tensor."""
        ...

    def moved_bytes_of(self, call: _Key_contra, /) -> int:
        """Bytes that a call reads and writes."""
        ...

    def flops_of(self, call: _Key_contra, /) -> int:
        """Operations of a call."""
        ...

    def launches_of(self, call: _Key_contra, /) -> int:
        """How many plain calls an eager call takes as long as, up to its kernel's launch."""
        ...

    def arithmetic_of(self, call: _Key_contra, /) -> Arithmetic:
        """What decides how fast these are."""
        ...

    def lies_in_order(self, node: _Key_contra, /) -> bool:
        """Whether a tensor is contiguous."""
        ...


@dataclass(frozen=True, slots=True)
class CostModel:
    """Times of a data-centre GPU, in microseconds; ``tools/bench/partition.py`` measures them.

    Only differences matter: what both sides do costs the same on both, but for products.

    Attributes:
        call_us: A plain eager call in a stitched graph, from Python to the kernel's launch: what an engine saves for each of its calls.
        engine_us: Entering and leaving an engine, without its bindings.
        input_us: Checking and binding one input.
        output_us: Allocating and binding one output.
        program_us: What a call of a compiled program takes besides its segments; without any engine the user's own module runs.
        bytes_per_us: Memory traffic; a result that only the next call reads stays on the chip inside an engine.
        narrow_flops_per_us: Operations of products of at most 16 bits.
        tf32_flops_per_us: Operations of fp32 products with TF32.
        fp32_flops_per_us: Operations of fp32 matrix products without TF32.
        fp32_convolution_flops_per_us: Operations of fp32 convolutions without TF32.
        product_share: Time of products in an engine, whose kernels take in what follows them, as a share of that in PyTorch.
        tf32_matrices: Whether PyTorch may use TF32 for matrix products.
        tf32_convolutions: Whether PyTorch may use TF32 for convolutions.
        tf32_engines: Whether engines may use TF32.
    """

    call_us: float = 12.0
    engine_us: float = 20.0
    input_us: float = 1.0
    output_us: float = 3.0
    program_us: float = 17.0
    bytes_per_us: float = 2e6
    narrow_flops_per_us: float = 4e8
    tf32_flops_per_us: float = 2e8
    fp32_flops_per_us: float = 5e7
    fp32_convolution_flops_per_us: float = 1.75e7
    product_share: float = 0.7
    tf32_matrices: bool = False
    tf32_convolutions: bool = True
    tf32_engines: bool = False

    def in_pytorch(self, arithmetic: Arithmetic) -> float:
        """Operations of products per microsecond in PyTorch."""
        tf32 = self.tf32_convolutions if arithmetic is Arithmetic.CONVOLUTIONS else self.tf32_matrices
        return self._flops_per_us(arithmetic, tf32=tf32)

    def in_engines(self, arithmetic: Arithmetic) -> float:
        """Operations of products per microsecond in an engine."""
        return self._flops_per_us(arithmetic, tf32=self.tf32_engines) / self.product_share

    def _flops_per_us(self, arithmetic: Arithmetic, *, tf32: bool) -> float:
        if arithmetic is Arithmetic.NARROW:
            return self.narrow_flops_per_us
        if tf32:
            return self.tf32_flops_per_us
        return self.fp32_convolution_flops_per_us if arithmetic is Arithmetic.CONVOLUTIONS else self.fp32_flops_per_us

    def engine_time_us(self, work: SegmentWork) -> float:
        """Time of a segment in an engine: its border, and its device time without the results that stay inside.

        Values that eager keeps in another order of dimensions than engines do are copied at the border.
        """
        border = self.engine_us + self.input_us * work.inputs + self.output_us * work.outputs
        copies = self.call_us * work.rearranged + 2 * work.rearranged_bytes / self.bytes_per_us
        moved = work.input_bytes + work.output_bytes + work.weight_bytes
        return border + copies + moved / self.bytes_per_us + work.product_us


DEFAULT_MODEL = CostModel()


@dataclass(frozen=True, slots=True)
class SegmentWork:
    """What a segment does, at the sizes that the program is tuned for.

    Attributes:
        calls: Operators, with those in the bodies of higher-order calls.
        flops: Operations.
        weight_bytes: Weights that it reads.
        inputs: Tensors that cross its border inwards.
        outputs: Tensors that cross its border outwards.
        input_bytes: Their bytes.
        output_bytes: Their bytes.
        rearranged: Tensors at the border whose dimensions lie in memory in another order than an engine's.
        rearranged_bytes: Their bytes.
        product_us: Estimated time of its operations in an engine.
        torch_us: Estimated time in PyTorch: each call takes its launch or its device time, whichever is longer.
    """

    calls: int
    flops: int
    weight_bytes: int
    inputs: int
    outputs: int
    input_bytes: int
    output_bytes: int
    rearranged: int
    rearranged_bytes: int
    product_us: float
    torch_us: float


@dataclass(frozen=True, slots=True)
class Content(Generic[_Key]):
    """The nodes of a segment: its calls, the tensors at its border, and its weights."""

    calls: Sequence[_Key]
    call_count: int
    inputs: Sequence[_Key]
    outputs: Sequence[_Key]
    weights: Sequence[_Key]


def measure(content: Content[_Key], work: Work[_Key], model: CostModel = DEFAULT_MODEL) -> SegmentWork:
    """The work of a segment; a call takes part with what it reads and writes."""
    in_pytorch, in_engines = ({kind: speed(kind) for kind in Arithmetic} for speed in (model.in_pytorch, model.in_engines))
    flops, product_us, torch_us = 0, 0.0, model.call_us * (content.call_count - len(content.calls))
    for call in content.calls:
        operations, kind = work.flops_of(call), work.arithmetic_of(call)
        flops += operations
        product_us += operations / in_engines[kind]
        device_us = work.moved_bytes_of(call) / model.bytes_per_us + operations / in_pytorch[kind]
        launch_us = model.call_us * work.launches_of(call)
        torch_us += device_us if device_us > launch_us else launch_us
    rearranged = [node for node in itertools.chain(content.inputs, content.outputs) if not work.lies_in_order(node)]
    return SegmentWork(
        calls=content.call_count,
        flops=flops,
        weight_bytes=_bytes_of(content.weights, work),
        inputs=len(content.inputs),
        outputs=len(content.outputs),
        input_bytes=_bytes_of(content.inputs, work),
        output_bytes=_bytes_of(content.outputs, work),
        rearranged=len(rearranged),
        rearranged_bytes=_bytes_of(rearranged, work),
        product_us=product_us,
        torch_us=torch_us,
    )


def _bytes_of(nodes: Iterable[_Key], work: Work[_Key]) -> int:
    return sum(map(work.bytes_of, nodes))
