"""What a written network says twice or knows already: positions, masks and scales that depend on no input, and equal layers.

Converters write each call by itself. TensorRT fuses layers and merges some equal ones, but computes anew in every run what follows from
constants alone through gathers, comparisons and running sums: the masks and position tables of language models.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable

import torch

from torchkiln_converters.support import BYTES
from torchkiln_converters.writing.shapes import same_shape
from torchkiln_core import Network, Step, Value
from torchkiln_core.layers import Constant, Select, Slice
from torchkiln_core.layers.checks import is_real

MAX_FOLDED_BYTES = 4 << 20
"""Larger constants than this cost more memory in the plan than they save time."""
MAX_COMPARED_ELEMENTS = 64
"""Constants of more elements are not compared with one another."""


def simplify(net: Network) -> None:
    """Rewrites a network in place: constants computed now, equal layers once, a ``Select`` without a choice not at all.

    Weights stay as they are, each under its name, so that a plan can be refitted.
    """
    known = _Known()
    same: dict[Value, Value] = {}
    first: dict[Hashable, Step] = {}
    steps: list[Step] = []
    outputs = {value for _, value in net.outputs}
    for step in net.steps:
        step = dataclasses.replace(step, inputs=tuple(None if value is None else same.get(value, value) for value in step.inputs))
        known.learn(step)
        # A value that the engine returns keeps its own layer: one layer cannot be two outputs.
        returned = not outputs.isdisjoint(step.outputs)
        chosen = None if returned else _chosen(net, step, known)
        if chosen is not None:
            same[step.outputs[0]] = chosen
            continue
        twin = first.setdefault(_identity(step), step)
        if twin is step or returned:
            steps.append(step)
        else:
            same |= {value: _as_sizes(kept, value) for value, kept in zip(step.outputs, twin.outputs, strict=True)}
    net.steps = _live(net, [known.folded(step) for step in steps])


class _Known:
    """The contents of values that follow from constants other than weights."""

    def __init__(self) -> None:
        self._tensors: dict[Value, torch.Tensor] = {}

    def learn(self, step: Step) -> None:
        """Computes the step's result where its operands are known."""
        if isinstance(step.layer, Constant):
            if step.weight is None:
                self._tensors[step.outputs[0]] = step.layer.tensor
            return
        operands = [None if value is None else self._tensors.get(value) for value in step.inputs]
        unknown = any(tensor is None and value is not None for tensor, value in zip(operands, step.inputs, strict=True))
        if unknown or not step.inputs or len(step.outputs) != 1 or step.layer.bodies() or not _is_small(step.outputs[0]):
            return
        result = _run(step, operands)
        if result is not None:
            self._tensors[step.outputs[0]] = result

    def tensor(self, value: Value | None) -> torch.Tensor | None:
        """The contents of a value, if known."""
        return None if value is None else self._tensors.get(value)

    def folded(self, step: Step) -> Step:
        """The step, or the constant that it computes. An expansion stays a layer: it reads one number, not as many as it writes.

        Constants of one byte are none that every layer takes.
        """
        tensor = self.tensor(step.outputs[0])
        if tensor is None or isinstance(step.layer, Constant) or _expands(step) or tensor.dtype in BYTES:
            return step
        step.outputs[0].constant = tensor
        return dataclasses.replace(step, layer=Constant(tensor), inputs=())


def _is_small(value: Value) -> bool:
    count = value.dtype.itemsize
    for size in value.shape:
        if not isinstance(size, int):
            return False
        count *= size
    return count <= MAX_FOLDED_BYTES


def _run(step: Step, operands: list[torch.Tensor | None]) -> torch.Tensor | None:
    """The layer's own semantics; ``None`` where a surrounding mode keeps tensors fake."""
    devices = {tensor.device for tensor in operands if tensor is not None}
    if len(devices) != 1:
        return None
    with torch.no_grad(), next(iter(devices)):
        result: torch.Tensor = step.layer.run(*step.arguments(operands))
    # The weights of an engine are read from the first byte to the last.
    return result.contiguous() if is_real(result) else None


def _expands(step: Step) -> bool:
    return isinstance(step.layer, Slice) and step.layer.stride is not None and 0 in step.layer.stride


def _identity(step: Step) -> Hashable:
    """Equal for steps that compute the same."""
    layer = step.layer
    if isinstance(layer, Constant):
        tensor = layer.tensor
        if step.weight is not None or not is_real(tensor) or tensor.numel() > MAX_COMPARED_ELEMENTS:
            return step.outputs[0]
        return tensor.dtype, tensor.device, tuple(tensor.shape), tuple(tensor.reshape(-1).view(torch.uint8).tolist())
    if layer.bodies():
        return step.outputs[0]
    # The text keeps 0.0 and -0.0 apart, and 1, 1.0 and True; the shapes, results whose sizes depend on data.
    return type(layer), repr(layer), step.inputs, tuple(value.shape for value in step.outputs)


def _as_sizes(kept: Value, dropped: Value) -> Value:
    """The kept one of two equal values, which may now serve as a shape tensor as well."""
    if kept.sizes is None:
        kept.sizes = dropped.sizes
    return kept


def _chosen(net: Network, step: Step, known: _Known) -> Value | None:
    """The operand that a ``Select`` always takes."""
    if not isinstance(step.layer, Select):
        return None
    condition, then, otherwise = step.inputs
    tensor = known.tensor(condition)
    if tensor is None or tensor.numel() == 0:
        return None
    chosen = then if bool(tensor.all()) else otherwise if not bool(tensor.any()) else None
    return chosen if chosen is not None and same_shape(net, chosen.shape, step.outputs[0].shape) else None


def _live(net: Network, steps: list[Step]) -> list[Step]:
    """The steps that an output needs, in order."""
    needed: set[Value] = {value for _, value in net.outputs}
    kept: list[Step] = []
    for step in reversed(steps):
        if not needed.isdisjoint(step.outputs):
            kept.append(step)
            needed.update(value for value in step.inputs if value is not None)
    return kept[::-1]
