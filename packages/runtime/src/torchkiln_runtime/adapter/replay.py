"""Replays a network record onto a TensorRT network definition, layer by layer, and checks what TensorRT infers."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch

from torchkiln_core import BuildError, ConstantValues, InternalError, Layer, Network, Size, Step, Value
from torchkiln_core.layers import (
    NMS,
    Activation,
    Attention,
    Cast,
    Concatenation,
    Constant,
    Convolution,
    Cumulative,
    Deconvolution,
    Dequantize,
    Einsum,
    Elementwise,
    Gather,
    GridSample,
    IfConditional,
    KVCacheUpdate,
    Linspace,
    Loop,
    MatrixMultiply,
    NonZero,
    Normalization,
    OneHot,
    ParametricRelu,
    Pooling,
    Quantize,
    RandomNormal,
    RandomUniform,
    Reduce,
    Resize,
    RotaryEmbedding,
    Scatter,
    Select,
    Shape,
    Shuffle,
    Slice,
    Softmax,
    TopK,
    Unary,
)
from torchkiln_runtime.adapter import (
    attention,
    control_flow,
    data_dependent,
    indexing,
    linear,
    pointwise,
    quantization,
    reduction,
    resampling,
    shape,
)
from torchkiln_runtime.adapter.definition import Definition
from torchkiln_runtime.adapter.few import apart
from torchkiln_runtime.adapter.parts import Parts
from torchkiln_runtime.library import Collection

WRITERS: Mapping[type[Layer], Callable[..., Any]] = types.MappingProxyType(
    {
        Activation: pointwise.activation,
        Attention: attention.attention,
        Cast: pointwise.cast,
        Concatenation: indexing.concatenation,
        Constant: shape.constant,
        Convolution: linear.convolution,
        Cumulative: reduction.cumulative,
        Deconvolution: linear.deconvolution,
        Dequantize: quantization.dequantize,
        Einsum: linear.einsum,
        Elementwise: pointwise.elementwise,
        Gather: indexing.gather,
        GridSample: resampling.grid_sample,
        IfConditional: control_flow.if_conditional,
        KVCacheUpdate: attention.kv_cache_update,
        Linspace: shape.linspace,
        Loop: control_flow.loop,
        MatrixMultiply: linear.matrix_multiply,
        NMS: data_dependent.nms,
        NonZero: data_dependent.non_zero,
        Normalization: reduction.normalization,
        OneHot: indexing.one_hot,
        ParametricRelu: pointwise.parametric_relu,
        Pooling: linear.pooling,
        Quantize: quantization.quantize,
        RandomNormal: shape.random_normal,
        RandomUniform: shape.random_uniform,
        Reduce: reduction.reduce,
        Resize: resampling.resize,
        RotaryEmbedding: attention.rotary_embedding,
        Scatter: indexing.scatter,
        Select: pointwise.select,
        Shape: shape.shape,
        Shuffle: shape.shuffle,
        Slice: indexing.slice_,
        Softmax: reduction.softmax,
        TopK: reduction.topk,
        Unary: pointwise.unary,
    }
)
"""The function that writes each layer: it returns TensorRT's layer, the tensors of its results, or ``None`` where TensorRT refuses."""

WEIGHT_OPERANDS: Mapping[type[Layer], tuple[int, ...]] = types.MappingProxyType({Convolution: (1, 2), Deconvolution: (1, 2)})
"""Operands that reach the writer as the tensor itself when they follow from constants."""


_UNNAMED = "(Unnamed Layer"
"""How TensorRT names a layer until it has a name."""


def input_name(index: int) -> str:
    """TensorRT's name of an input; positions rather than our names, which may collide between inputs and outputs."""
    return f"input_{index}"


def output_name(index: int) -> str:
    """TensorRT's name of an output."""
    return f"output_{index}"


class Replay:
    """Writes a network, or a body of one of its layers.

    Args:
        to: The definition.
        network: The record.
        log: What TensorRT says meanwhile.
    """

    def __init__(self, to: Definition, network: Network, log: Collection) -> None:
        self._to = to
        self._record = network
        self._log = log
        self._tensors: dict[Value, Any] = {}
        self._constants = {step.outputs[0]: step for step in network.steps if isinstance(step.layer, Constant)}
        self._known = ConstantValues(network)
        self._parts = Parts(network, self._known)
        self._needed = self._find_needed()

    def write(self) -> None:
        """Inputs, layers, outputs.

        Raises:
            BuildError: TensorRT refuses a layer.
            InternalError: TensorRT infers another dtype or shape than the record has.
        """
        for index, value in enumerate(self._record.inputs):
            self._write_input(index, value)
        self._write_steps()
        for index, (_, value) in enumerate(self._record.outputs):
            self._write_output(index, value)

    def write_body(self, owner: Step, tensors: Sequence[Any]) -> list[Any]:
        """The layers of a body of ``owner`` with ``tensors`` as its inputs; returns its outputs."""
        for value, tensor in zip(self._record.inputs, tensors, strict=True):
            self._check(owner, value, tensor)
            self._tensors[value] = tensor
        self._write_steps()
        return [self._tensor(value) for _, value in self._record.outputs]

    def _write_steps(self) -> None:
        for step in self._record.steps:
            # Constants are written where a layer needs them as a tensor; kernels never are.
            if not isinstance(step.layer, Constant) and not self._needed.isdisjoint(step.outputs):
                self._write_step(step)

    def _write_input(self, index: int, value: Value) -> None:
        sizes = [size if isinstance(size, int) else -1 for size in value.shape]
        tensor = self._to.network.add_input(input_name(index), self._to.dtype(value.dtype), self._to.dims(sizes))
        if tensor is None:
            raise BuildError(f"{self._to.library.name} refuses the input {value!r}\n{self._log.text}")
        for dim, size in enumerate(value.shape):
            if isinstance(size, sympy.Symbol):
                tensor.set_dimension_name(dim, size.name)
        self._tensors[value] = tensor

    def _write_step(self, step: Step) -> None:
        writer = WRITERS.get(type(step.layer))
        if writer is None:
            raise InternalError(f"{step.layer.kind()}: no function writes this layer", layer=step.name, where=step.where)
        operands = [self._operand(step, index, value) for index, value in enumerate(step.inputs)]
        if step.layer.bodies():
            operands.insert(0, _Bodies(self._to, self._log, step, tuple(value in self._needed for value in step.outputs)))
        self._log.errors.clear()
        written = self._to.network.num_layers
        try:
            for index in self._parts.broadcast(step, operands):
                operands[index] = apart(self._to, operands[index])
            result = writer(self._to, step.layer, *operands)
            if result is None:
                raise self._refusal(step)
            self._name(step, written)
            is_layer = not isinstance(result, tuple) and hasattr(result, "num_outputs")
            if is_layer:
                result.name = step.name
                tensors = tuple(result.get_output(index) for index in range(result.num_outputs))
            else:
                tensors = result if isinstance(result, tuple) else (result,)
            for value, tensor in zip(step.outputs, tensors, strict=True):
                if tensor is None and value not in self._needed:
                    continue
                self._check(step, value, tensor)
                self._tensors[value] = tensor
        except (RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise self._refusal(step, error) from error

    def _name(self, step: Step, first: int) -> None:
        """Gives the layers from ``first`` on, all of which stand for this one, its name and place, but those of bodies."""
        layers = [self._to.network.get_layer(index) for index in range(first, self._to.network.num_layers)]
        for position, layer in enumerate(item for item in layers if item.name.startswith(_UNNAMED)):
            layer.name = f"{step.name}:{position}"
            if step.where:
                layer.metadata = step.where

    def _operand(self, step: Step, index: int, value: Value | None) -> Any:
        if value is None:
            return None
        tensor = self._weights(step, index, value)
        return self._tensor(value) if tensor is None else tensor

    def _weights(self, step: Step, index: int, value: Value) -> torch.Tensor | None:
        """The contents of a constant operand that the writer takes as such."""
        return self._known.tensor(value) if self._is_weights(step, index, value) else None

    def _is_weights(self, step: Step, index: int, value: Value) -> bool:
        return index in WEIGHT_OPERANDS.get(type(step.layer), ()) and self._known.knows(value)

    def _find_needed(self) -> set[Value]:
        """The values that are written: those that outputs depend on, without what is only part of a computed kernel.

        Inside conditionals TensorRT fails on a loop or conditional with an output that nobody reads.
        """
        needed = {value for _, value in self._record.outputs}
        for step in reversed(self._record.steps):
            if not needed.isdisjoint(step.outputs):
                operands = [(index, value) for index, value in enumerate(step.inputs) if value is not None]
                needed.update(value for index, value in operands if not self._is_weights(step, index, value))
        return needed

    def _tensor(self, value: Value) -> Any:
        if value not in self._tensors:
            self._write_step(self._constants[value])
        return self._tensors[value]

    def _write_output(self, index: int, value: Value) -> None:
        tensor = self._tensor(value)
        if tensor.is_network_input or tensor.is_network_output or value in self._constants:
            layer = self._to.network.add_identity(tensor)
            layer.name = output_name(index)
            tensor = layer.get_output(0)
        tensor.name = output_name(index)
        self._to.network.mark_output(tensor)

    def _check(self, step: Step, value: Value, tensor: Any) -> None:
        # Also what TensorRT needs inside loops: it infers dtypes in the order of such questions, and fails on a cycle that it meets late.
        sizes = tuple(tensor.shape)
        same = tensor.dtype == self._to.dtype(value.dtype) and len(sizes) == value.rank
        same = same and all(self._agree(ours, theirs) for ours, theirs in zip(value.shape, sizes, strict=True))
        if not same:
            raise InternalError(
                f"{step.layer}: the record has {value!r}, TensorRT infers {str(tensor.dtype).rsplit('.', 1)[-1]}{list(sizes)}",
                layer=step.name,
                where=step.where,
            )

    def _agree(self, ours: Size, theirs: int) -> bool:
        if theirs == -1:
            return True
        if isinstance(ours, int):
            return ours == theirs
        # TensorRT knows a size that the record leaves open: true only if the ranges leave one value, or a guard of the program does.
        dim = self._record.dim(ours)
        if theirs == dim or (not isinstance(dim, int) and dim.min == dim.max == theirs):
            return True
        environment = self._record.fake_mode.shape_env
        return environment is not None and environment._maybe_evaluate_static(sympy.Eq(ours, theirs)) == sympy.true

    def _refusal(self, step: Step, error: Exception | None = None) -> BuildError:
        shown = ", ".join("-" if value is None else repr(value) for value in step.inputs)
        reason = f" ({error})" if error is not None and not self._log.errors else ""
        return BuildError(
            f"{self._to.library.name} {self._to.library.version} refuses {step.layer} of ({shown}){reason}\n{self._log.text}",
            node=step.name,
            where=step.where,
            fix="run the operator in PyTorch with torch_executed_ops",
        )


class _Bodies:
    """Writes the bodies of the layer of one step."""

    def __init__(self, to: Definition, log: Collection, step: Step, needed: tuple[bool, ...]) -> None:
        self.name = step.name
        self.needed = needed
        self._to = to
        self._log = log
        self._step = step

    def write(self, body: Network, tensors: Sequence[Any]) -> list[Any]:
        """Writes the layers of ``body`` with ``tensors`` as its inputs, and returns its outputs."""
        return Replay(self._to, body, self._log).write_body(self._step, tensors)
