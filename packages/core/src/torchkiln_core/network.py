"""``Network``: the typed record of the layers that TensorRT will be asked to build.

A network is written by ``net.add(layer, *values)``. A layer is a frozen dataclass of attributes whose ``run`` is its semantics: on fake
tensors it infers dtype and (symbolic) shape while the network is written, on real tensors it is the reference engine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from torchkiln_core.errors import InternalError
from torchkiln_core.inference import no_new_guards, range_of
from torchkiln_core.size import Size, sizes_of, symbols_of
from torchkiln_core.spec import Dim, DimRange, TensorSpec


@dataclass(frozen=True, slots=True)
class Layer:
    """Attributes and semantics of one TensorRT layer.

    ``run`` takes a tensor per operand (``None`` for one left out). Operands whose index is in ``shape_operands`` hold sizes: ``run``
    gets those as a sequence of integers, symbolic while shapes are inferred. A layer that owns bodies gets a ``RunBody`` before them.
    """

    shape_operands: ClassVar[tuple[int, ...]] = ()
    run: ClassVar[Callable[..., Any]]

    def bodies(self) -> Mapping[str, Network]:
        """The networks that the layer owns, by attribute."""
        return {}

    def check(self, inputs: Sequence[Value | None]) -> None:
        """Whether the bodies fit the operands.

        Raises:
            InternalError: They do not.
        """

    @classmethod
    def kind(cls) -> str:
        """Name of the layer in records and messages, such as ``Activation``."""
        return cls.__name__


@dataclass(eq=False, slots=True)
class Value:
    """A tensor of a network.

    Attributes:
        name: Unique in its network.
        dtype: As TensorRT will hold it.
        shape: ``[*]``, expressions over the input symbols.
        fake: The fake tensor that layers infer from; ``None`` in a network read from a record, which is complete.
        sizes: The integers that it holds, when it is a shape tensor.
        constant: The tensor that it holds, when it is a constant; by reference.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[Size, ...]
    fake: torch.Tensor | None = None
    sizes: tuple[Size, ...] | None = None
    constant: torch.Tensor | None = None

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether every dimension is an integer."""
        return all(isinstance(dim, int) for dim in self.shape)

    def __repr__(self) -> str:
        return f"%{self.name}: {str(self.dtype).removeprefix('torch.')}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Step:
    """A layer applied to values.

    ``where`` is the user's source line, ``weight`` the weight's name when the layer is a constant made from one.
    """

    name: str
    layer: Layer
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value, ...]
    where: str | None
    weight: str | None = None

    def arguments(self, tensors: Sequence[torch.Tensor | None]) -> list[Any]:
        """The operands as ``run`` of the layer takes them on real tensors: sizes as integers."""
        sizes = self.layer.shape_operands
        return [tensor.tolist() if tensor is not None and index in sizes else tensor for index, tensor in enumerate(tensors)]


RunBody: TypeAlias = Callable[["Network", Sequence[torch.Tensor]], tuple[torch.Tensor, ...]]
"""What runs a body on tensors for its inputs, or infers its outputs from fake ones."""


class Network:
    """The layers of one engine or of one body of a layer, in order.

    Args:
        dims: Range of each free symbol of the inputs.
        fake_mode: The fake mode of the program; a fresh one by default, which suits static shapes only.
    """

    def __init__(self, dims: Mapping[str, DimRange] | None = None, fake_mode: FakeTensorMode | None = None) -> None:
        self.dims: dict[str, DimRange] = dict(dims or {})
        self.fake_mode = fake_mode or FakeTensorMode()
        self.inputs: list[Value] = []
        self.outputs: list[tuple[str, Value]] = []
        self.steps: list[Step] = []
        self._scope = "net"
        self._where: str | None = None
        self._counts: dict[str, int] = {}
        self._names: set[str] = set()
        self._own: set[Value] = set()

    @contextlib.contextmanager
    def scope(self, name: str, where: str | None = None) -> Iterator[None]:
        """Names the steps written inside after the call being converted and points them at the user's source line."""
        before = self._scope, self._where
        self._scope, self._where = name, where
        try:
            yield
        finally:
            self._scope, self._where = before

    def body(self, name: str) -> Network:
        """An empty network for a layer of this one to own.

        A body sees nothing but its inputs, which the layer's operands feed; its names are unique within this network too.
        """
        body = Network(fake_mode=self.fake_mode)
        body.dims, body._names, body._counts = self.dims, self._names, self._counts
        body._scope, body._where = f"{self._scope}/{name}", self._where
        return body

    def all_steps(self) -> Iterator[Step]:
        """The steps in order, each followed by those of the bodies that its layer owns."""
        for step in self.steps:
            yield step
            for body in step.layer.bodies().values():
                yield from body.all_steps()

    def input(self, name: str, dtype: torch.dtype, shape: Sequence[int | torch.SymInt]) -> Value:
        """Declares an input binding of shape ``[*]``."""
        with no_new_guards(self.fake_mode), self.fake_mode:
            fake = torch.empty(tuple(shape), dtype=dtype)
        value = Value(self._unique(name), dtype, sizes_of(tuple(shape)), fake)
        self.inputs.append(value)
        self._own.add(value)
        return value

    def output(self, name: str, value: Value) -> None:
        """Declares an output binding.

        Raises:
            InternalError: The value is of another network.
        """
        if value.fake is not None:
            self._check_own(value, name)
        self.outputs.append((name, value))

    def constant(self, tensor: torch.Tensor, weight: str | None = None) -> Value:
        """A constant holding ``tensor`` by reference; ``weight`` names the parameter or buffer that it is."""
        from torchkiln_core.layers.source import Constant

        # A constant infers nothing: its fake twin is made from its shape, whatever dispatch modes surround the conversion.
        with self.fake_mode:
            fake = torch.empty(tensor.shape, dtype=tensor.dtype)
        [value] = self._record(self._unique(f"{self._scope}/{Constant.kind()}"), Constant(tensor), (), (fake,), weight)
        value.constant = tensor
        return value

    def add(self, layer: Layer, *inputs: Value | None) -> Value:
        """Applies a layer that has one output.

        Raises:
            InternalError: The layer does not take these operands.
        """
        outputs = self.add_many(layer, *inputs)
        if len(outputs) != 1:
            raise InternalError(f"{layer.kind()}: expected one output, got {len(outputs)}", layer=self._scope, where=self._where)
        return outputs[0]

    def add_many(self, layer: Layer, *inputs: Value | None) -> tuple[Value, ...]:
        """Applies a layer that has several outputs, as ``add``."""
        name = self._unique(f"{self._scope}/{layer.kind()}")
        operands = [self._operand(layer, index, value, name) for index, value in enumerate(inputs)]
        if layer.bodies():
            operands.insert(0, self._infer_body)
        try:
            layer.check(inputs)
            with no_new_guards(self.fake_mode), self.fake_mode:
                result = layer.run(*operands)
        except InternalError as error:
            raise self._located(error, name) from error
        except Exception as error:
            shown = ", ".join(map(repr, inputs))
            raise InternalError(f"{layer} does not take ({shown}): {error}", layer=name, where=self._where) from error
        fakes = result if isinstance(result, tuple) else (result,)
        return self._record(name, layer, inputs, fakes, None)

    def replace(self, values: Mapping[Value, Value]) -> None:
        """Makes layers and outputs that read a key of ``values`` read its value instead, which has the same dtype and shape."""
        self.steps = [
            dataclasses.replace(step, inputs=tuple(None if value is None else values.get(value, value) for value in step.inputs))
            for step in self.steps
        ]
        self.outputs = [(name, values.get(value, value)) for name, value in self.outputs]

    def size_tensor(self, sizes: Sequence[Size]) -> Value:
        """An int64 ``[len(sizes)]`` value that holds ``sizes`` at run time, computed from the shapes of the inputs.

        Raises:
            InternalError: A symbol appears in no input's shape.
        """
        from torchkiln_core.shape_tensor import write_sizes

        try:
            return write_sizes(self, tuple(sizes))
        except InternalError as error:
            raise self._located(error, self._scope) from error

    def specs(self) -> tuple[TensorSpec, ...]:
        """Specs of the inputs, with the range of every dynamic dimension."""
        return tuple(TensorSpec(value.name, value.dtype, tuple(self.dim(size) for size in value.shape)) for value in self.inputs)

    def dim(self, size: Size) -> Dim:
        """The range of ``size``, from the ranges of its symbols.

        Raises:
            InternalError: A symbol has no range, or the size has no bounds.
        """
        if isinstance(size, int):
            return size
        missing = [name for name in symbols_of(size) if name not in self.dims]
        if missing:
            raise InternalError(f"size {size}: no range for {', '.join(missing)}")
        found = range_of(size, self.dims)
        if found is None:
            raise InternalError(f"size {size}: no bounds for {self.dims}")
        return found

    def symbolic_int(self, size: Size) -> int | torch.SymInt:
        """``size`` as the integer that fake tensors take."""
        if isinstance(size, int):
            return size
        shape_env = self.fake_mode.shape_env
        if shape_env is None:
            raise InternalError(f"size {size}: symbolic in a network without a shape environment")
        result = shape_env.create_symintnode(size, hint=None)
        return result if isinstance(result, torch.SymInt) else int(result)

    def _record(
        self, name: str, layer: Layer, inputs: tuple[Value | None, ...], fakes: tuple[torch.Tensor, ...], weight: str | None
    ) -> tuple[Value, ...]:
        names = [name] if len(fakes) == 1 else [self._unique(f"{name}:{index}") for index in range(len(fakes))]
        outputs = tuple(Value(of, fake.dtype, sizes_of(fake.shape), fake) for of, fake in zip(names, fakes, strict=True))
        self.steps.append(Step(name, layer, inputs, outputs, self._where, weight))
        self._own.update(outputs)
        return outputs

    def _operand(self, layer: Layer, index: int, value: Value | None, name: str) -> Any:
        if value is None:
            return None
        if value.fake is None:
            raise InternalError(f"%{value.name}: a network read from a record takes no further layers", layer=name, where=self._where)
        self._check_own(value, name)
        if index not in layer.shape_operands:
            return value.fake
        if value.sizes is None:
            raise InternalError(f"{layer.kind()}: operand {index} must hold sizes (see Network.size_tensor)", layer=name, where=self._where)
        return [self.symbolic_int(size) for size in value.sizes]

    def _check_own(self, value: Value, name: str) -> None:
        if value not in self._own:
            rule = "a body takes the values around it as operands of its layer"
            raise InternalError(f"%{value.name} is of another network: {rule}", layer=name, where=self._where)

    def _infer_body(self, body: Network, operands: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The outputs of a body, which were inferred while it was written; ``Layer.check`` has compared the operands."""
        if body.fake_mode is not self.fake_mode:
            raise InternalError("expected a body made by Network.body of the network that the layer is added to")
        fakes = [value.fake for _, value in body.outputs]
        return tuple(fake.new_empty(fake.shape) for fake in fakes if fake is not None)

    def _located(self, error: InternalError, layer: str) -> InternalError:
        """``error`` with the layer and the user's source line, which a layer's own checks do not know."""
        if error.layer is not None or error.where is not None:
            return error
        return InternalError(str(error), layer=layer, where=self._where)

    def _unique(self, name: str) -> str:
        unique, count = name, self._counts.get(name, 0)
        while unique in self._names:
            count += 1
            unique = f"{name}_{count}"
        self._counts[name] = count
        self._names.add(unique)
        return unique

    def __str__(self) -> str:
        lines = [f"input {value!r}" for value in self.inputs]
        for step in self.steps:
            operands = ", ".join("-" if value is None else f"%{value.name}" for value in step.inputs)
            lines.append(f"{', '.join(map(repr, step.outputs))} = {step.layer}({operands})")
            for attribute, body in step.layer.bodies().items():
                lines += [f"  {attribute}:", textwrap.indent(str(body), "    ")]
        lines += [f"output {name} = %{value.name}" for name, value in self.outputs]
        return "\n".join(lines)
