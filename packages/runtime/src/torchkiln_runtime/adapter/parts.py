"""Parts of a tensor that are broadcast, kept out of the kernels of what follows.

Where a part that begins at the first element, such as ``x[:, :1]``, is broadcast against the tensor that it was taken from, and a reduction
follows, TensorRT-RTX 1.6 makes one kernel of it, which computes wrong numbers: of ``(x - x[:, :1]).sum(0)`` for ``x`` of any size (static
shapes, all dtypes, seen on an H200), also with elementwise layers between the part and its broadcast. A selection on the part keeps it from
that. Right without it were dynamic shapes, and in place of the reduction products, convolutions, pools, running sums and results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchkiln_core import ConstantValues, Network, Size, Step, Value
from torchkiln_core.layers import (
    Activation,
    Cast,
    Concatenation,
    Elementwise,
    Gather,
    MatrixMultiply,
    MatrixOp,
    ParametricRelu,
    Select,
    Shape,
    Shuffle,
    Slice,
    Unary,
)

_BROADCASTING = (Elementwise, ParametricRelu, Select)
_FOLLOWING = (*_BROADCASTING, Activation, Cast, Concatenation, Gather, Shuffle, Slice, Unary)


class Parts:
    """The values of a network that are parts of tensors, or follow from some element by element, but for constants and sizes.

    Args:
        network: The record.
        known: Its constants.
    """

    def __init__(self, network: Network, known: ConstantValues) -> None:
        self._values: set[Value] = set()
        sizes: set[Value] = set()
        for step in network.steps:
            data = [value for value in step.inputs if value is not None and value not in sizes and not known.knows(value)]
            if isinstance(step.layer, Shape) or not data:
                sizes.update(step.outputs)
            elif isinstance(step.layer, _FOLLOWING) and (_takes_part(step, known) or not self._values.isdisjoint(step.inputs)):
                self._values.update(step.outputs)

    def broadcast(self, step: Step, operands: Sequence[Any]) -> list[int]:
        """Which operands of a step, given as ``ITensor``, are such parts of fixed shapes and are broadcast by it."""
        parts = [index for index, value in enumerate(step.inputs) if value in self._values]
        if not parts or not isinstance(step.layer, (*_BROADCASTING, Concatenation, MatrixMultiply)):
            return []
        shapes = [tuple(operand.shape) for operand in operands]
        if any(-1 in shape for shape in shapes):
            return []
        match step.layer:
            case Concatenation(axis=axis):
                # Of one element that is repeated TensorRT makes one that it broadcasts.
                return [index for index in parts if shapes[index][axis] == 1 and step.inputs.count(step.inputs[index]) > 1]
            case MatrixMultiply(left=left):
                # Where it sums one element it is written as a product that broadcasts.
                return parts if shapes[0][-2 if left is MatrixOp.TRANSPOSE else -1] == 1 else []
            case _:
                result = [max(sizes) for sizes in zip(*shapes, strict=True)]
                return [index for index in parts if any(size < full for size, full in zip(shapes[index], result, strict=True))]


def _takes_part(step: Step, known: ConstantValues) -> bool:
    source, *operands = step.inputs
    if isinstance(step.layer, Gather):
        # With one index that it knows TensorRT takes it for a slice; of several none was wrong.
        return operands[0] is not None and operands[0].rank == 0 and known.knows(operands[0])
    return isinstance(step.layer, Slice) and source is not None and any(map(_is_less, step.outputs[0].shape, source.shape))


def _is_less(size: Size, whole: Size) -> bool:
    return size < whole if isinstance(size, int) and isinstance(whole, int) else size != whole
