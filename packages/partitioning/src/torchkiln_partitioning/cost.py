"""The border cost model: whether an engine segment saves more time than its border takes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

_Key = TypeVar("_Key")
_Key_contra = TypeVar("_Key_contra", contravariant=True)


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

    def lies_in_order(self, node: _Key_contra, /) -> bool:
        """Whether a tensor is contiguous."""
        ...


@dataclass(frozen=True, slots=True)
class CostModel:
    """Times of a data-centre GPU, in microseconds; ``tools/bench/partition.py`` measures them.

    Only differences matter: what both sides do costs the same on both, but for products.

    Attributes:
        call_us: An eager call in a stitched graph, from Python to the kernel's launch: what an engine saves for each of its calls.
        engine_us: Entering and leaving an engine, without its bindings.
        input_us: Checking and binding one input.
        output_us: Allocating and binding one output.
        program_us: What a call of a compiled program takes besides its segments; without any engine the user's own module runs.
        bytes_per_us: Memory traffic; a result that only the next call reads stays on the chip inside an engine.
        flops_per_us: Operations of a product.
        product_share: Time of products in an engine, whose kernels take in what follows them, as a share of that in PyTorch.
    """

    call_us: float = 8.0
    engine_us: float = 14.0
    input_us: float = 1.0
    output_us: float = 3.0
    program_us: float = 8.0
    bytes_per_us: float = 2e6
    flops_per_us: float = 1e8
    product_share: float = 0.8

    def in_engine_us(self, work: SegmentWork) -> float:
        """Time of a segment in an engine: its border, and its device time without the results that stay inside.

        Values that eager keeps in another order of dimensions than engines do are copied at the border.
        """
        border = self.engine_us + self.input_us * work.inputs + self.output_us * work.outputs
        copies = self.call_us * work.rearranged + 2 * work.rearranged_bytes / self.bytes_per_us
        moved = work.input_bytes + work.output_bytes + work.weight_bytes
        return border + copies + moved / self.bytes_per_us + self.product_share * work.flops / self.flops_per_us


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
    flops, torch_us, call_us = 0, model.call_us * (content.call_count - len(content.calls)), model.call_us
    for call in content.calls:
        operations = work.flops_of(call)
        flops += operations
        device_us = work.moved_bytes_of(call) / model.bytes_per_us + operations / model.flops_per_us
        torch_us += device_us if device_us > call_us else call_us
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
        torch_us=torch_us,
    )


def _bytes_of(nodes: Iterable[_Key], work: Work[_Key]) -> int:
    return sum(map(work.bytes_of, nodes))
