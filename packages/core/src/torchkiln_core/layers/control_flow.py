"""Layers that own body networks: a body sees nothing but its inputs, which the operands of the layer feed."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

import torch

from torchkiln_core.errors import InternalError
from torchkiln_core.inference import statically_equal
from torchkiln_core.layers.checks import is_real
from torchkiln_core.network import Layer, Network, RunBody, Value
from torchkiln_core.size import Size, bind_sizes, evaluate_bound

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class IfConditional(Layer):
    """Runs ``then`` where the condition is true, else ``otherwise``. Source: TensorRT operator page "If".

    Operands are the condition, bool ``[]``, and one for each input of the bodies, which have the same inputs. Their outputs are those
    of the layer, of the same dtypes and shapes in both: TensorRT takes other shapes for a condition known when the engine is built.

    No converter writes one: TensorRT-RTX 1.6 builds it, but on sm_90 a product of an odd width in one body leaves unwritten what the other
    body reads, and a product of dynamic sizes has no kernel.
    """

    then: Network = field(repr=False)
    otherwise: Network = field(repr=False)

    def __post_init__(self) -> None:
        left, right = (len(body.outputs) for body in (self.then, self.otherwise))
        if left != right or left == 0:
            raise InternalError(f"IfConditional: expected as many outputs of both bodies, at least one, got {left} and {right}")
        for (_, value), (_, other) in zip(self.then.outputs, self.otherwise.outputs, strict=True):
            _expect("IfConditional: output of otherwise", other, value.dtype, value.shape, self.then)

    def bodies(self) -> Mapping[str, Network]:
        """Both branches."""
        return {"then": self.then, "otherwise": self.otherwise}

    def check(self, inputs: Sequence[Value | None]) -> None:
        """Compares the condition with bool ``[]``, and the other operands with the inputs of the bodies."""
        condition, *operands = _present("IfConditional", inputs)
        _expect("IfConditional: condition", condition, torch.bool, (), self.then)
        for name, body in self.bodies().items():
            _feed(f"IfConditional: {name}", body, operands)

    def run(self, run_body: RunBody, condition: torch.Tensor, *operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """``bool [], [*]... -> [*]...``."""
        if not is_real(condition):
            return run_body(self.then, operands)
        return run_body(self.then if bool(condition) else self.otherwise, operands)


@dataclass(frozen=True, slots=True)
class Iterated:
    """A tensor of which trip ``i`` of a loop sees the slice ``i`` along ``axis``; in reverse, the first trip sees the last one."""

    axis: int = 0
    reverse: bool = False


class LoopOutput(enum.Enum):
    """``trt.LoopOutput`` of the values of all trips; ``LAST_VALUE`` is what every recurrence has."""

    CONCATENATE = "CONCATENATE"
    REVERSE = "REVERSE"


@dataclass(frozen=True, slots=True)
class Collected:
    """A value of the body of which the loop returns those of all trips, stacked along the new ``axis``, in reverse the last trip first."""

    order: LoopOutput = LoopOutput.CONCATENATE
    axis: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Loop(Layer):
    """Runs ``body`` trip after trip. Source: TensorRT guide "Working with Loops"; ITripLimitLayer, IRecurrenceLayer, IIteratorLayer.

    The trips end at a count, or as soon as ``condition`` is false, which is asked before each; both may be given. Operands are

    - the count as int32 or int64 ``[]``, or ``None``;
    - the count as a size operand ``[1]``, or ``None``: loops that iterate over a tensor or collect values need this one, since TensorRT
      leaves elements beyond either length undefined;
    - the initial value of each recurrence, then each iterated tensor, then any others, which stay the same.

    Inputs of the body are the recurrences, the slices of the iterated tensors, and the others; its outputs are the next values of the
    recurrences, then the collected ones. Inputs of the condition are the recurrences and the others, its output is bool ``[]``. Outputs
    of the layer are the recurrences after the last trip (the initial values if there is none), then the collected values.

    A recurrence keeps its dtype and shape, as TensorRT demands. Collecting under a condition is refused: how long the result is would
    depend on data.
    """

    body: Network = field(repr=False)
    condition: Network | None = field(default=None, repr=False)
    iterated: tuple[Iterated, ...] = ()
    collected: tuple[Collected, ...] = ()

    shape_operands: ClassVar[tuple[int, ...]] = (1,)

    def __post_init__(self) -> None:
        fed = self.recurrences + len(self.iterated)
        if self.recurrences < 0 or fed == 0 or len(self.body.inputs) < fed:
            raise InternalError(
                f"Loop: expected a body with a recurrence or a slice, and outputs for {len(self.collected)} collected values, "
                f"got {len(self.body.inputs)} inputs and {len(self.body.outputs)} outputs"
            )
        for value, (_, following) in zip(self.body.inputs, self.body.outputs[: self.recurrences], strict=False):
            _expect("Loop: next value of a recurrence", following, value.dtype, value.shape, self.body)
        for value in self.body.inputs[:fed]:
            if value.sizes is not None:
                raise InternalError(f"Loop: {value!r} holds fixed sizes, but changes between trips")
        if self.condition is not None:
            self._check_condition(self.condition)

    @property
    def recurrences(self) -> int:
        """The number of recurrences."""
        return len(self.body.outputs) - len(self.collected)

    def split(self, operands: Sequence[T]) -> tuple[tuple[T, ...], tuple[T, ...], tuple[T, ...]]:
        """The operands behind the counts: initial values, iterated tensors, others."""
        middle, end = self.recurrences, self.recurrences + len(self.iterated)
        return tuple(operands[:middle]), tuple(operands[middle:end]), tuple(operands[end:])

    def bodies(self) -> Mapping[str, Network]:
        """The body, and the condition if there is one."""
        return {"body": self.body} if self.condition is None else {"condition": self.condition, "body": self.body}

    def check(self, inputs: Sequence[Value | None]) -> None:
        """Compares the operands with the inputs of the bodies."""
        count, length = (*inputs, None, None)[:2]
        initial, iterated, others = self.split(_present("Loop", inputs[2:]))
        if count is not None and (length is not None or count.dtype not in (torch.int32, torch.int64) or count.shape != ()):
            raise InternalError(f"Loop: expected one count, int32 or int64 [] or a size, got {count!r} and {length!r}")
        if length is None and (self.iterated or self.collected):
            raise InternalError("Loop: expected the count as a size, since the loop iterates or collects, got none")
        if count is None and length is None and self.condition is None:
            raise InternalError("Loop: expected a count or a condition, got neither")
        if len(iterated) != len(self.iterated):
            raise InternalError(f"Loop: expected {len(self.iterated)} iterated tensors, got {len(iterated)}")
        trips = self._trips(length)
        slices = [self._slice(value, how, trips) for value, how in zip(iterated, self.iterated, strict=True)]
        _feed("Loop: body", self.body, (*initial, *slices, *others))
        if self.condition is not None:
            _feed("Loop: condition", self.condition, (*initial, *others))

    def run(
        self, run_body: RunBody, count: torch.Tensor | None, length: Sequence[int] | None, *operands: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """``int [], sizes [1], [*]... -> [*]...``."""
        state, iterated, others = self.split(operands)
        if not is_real(operands[0]):
            return self._infer(run_body(self.body, operands), length)
        limit = length[0] if length is not None else None if count is None else int(count)
        trips: list[tuple[torch.Tensor, ...]] = []
        for trip in itertools.count():
            if limit is not None and trip >= limit:
                break
            if self.condition is not None and not bool(run_body(self.condition, (*state, *others))[0]):
                break
            slices = [
                tensor.select(how.axis, (limit or 0) - 1 - trip if how.reverse else trip)
                for tensor, how in zip(iterated, self.iterated, strict=True)
            ]
            results = run_body(self.body, (*state, *slices, *others))
            state = results[: self.recurrences]
            trips.append(results[self.recurrences :])
        return (*state, *self._collect(trips, operands))

    def _infer(self, results: tuple[torch.Tensor, ...], length: Sequence[int] | None) -> tuple[torch.Tensor, ...]:
        """The outputs, from fake ones of the body."""
        stacks = []
        for value, how in zip(results[self.recurrences :], self.collected, strict=True):
            axis = self._stack_axis(how, value.dim())
            stacks.append(value.new_empty((*value.shape[:axis], *(length or ()), *value.shape[axis:])))
        return (*results[: self.recurrences], *stacks)

    def _collect(self, trips: list[tuple[torch.Tensor, ...]], operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if trips:
            columns = zip(*trips, strict=True)
            return [
                torch.stack(column[::-1] if how.order is LoopOutput.REVERSE else column, how.axis)
                for column, how in zip(columns, self.collected, strict=True)
            ]
        shapes = self._shapes_of_collected(operands) if self.collected else []
        return [
            torch.empty((*shape[: how.axis], 0, *shape[how.axis :]), dtype=value.dtype, device=operands[0].device)
            for shape, how, (_, value) in zip(shapes, self.collected, self.body.outputs[self.recurrences :], strict=True)
        ]

    def _shapes_of_collected(self, operands: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
        """What the shapes of the body's outputs would be if it ran."""
        state, iterated, others = self.split(operands)
        slices = [(*tensor.shape[: how.axis], *tensor.shape[how.axis + 1 :]) for tensor, how in zip(iterated, self.iterated, strict=True)]
        shapes = [*(tensor.shape for tensor in state), *slices, *(tensor.shape for tensor in others)]
        sizes: list[Size] = [size for value in self.body.inputs for size in value.shape]
        values = [size for shape in shapes for size in shape]
        for value, tensor in zip(self.body.inputs[len(state) + len(slices) :], others, strict=True):
            if value.sizes is not None:
                sizes += value.sizes
                values += tensor.tolist()
        known = bind_sizes(sizes, values)
        return [tuple(evaluate_bound(size, known) for size in value.shape) for _, value in self.body.outputs[self.recurrences :]]

    def _check_condition(self, condition: Network) -> None:
        if self.collected:
            raise InternalError("Loop: expected no collected values where a condition ends the loop")
        if len(condition.outputs) != 1:
            raise InternalError(f"Loop: expected a condition with one output, got {len(condition.outputs)}")
        if any(step.layer.bodies() for step in condition.steps):
            raise InternalError("Loop: expected a condition without loops and conditionals, for which TensorRT fails to build")
        (_, flag) = condition.outputs[0]
        _expect("Loop: condition", flag, torch.bool, (), condition)
        needed = {flag}
        for step in reversed(condition.steps):
            if needed.intersection(step.outputs):
                needed.update(value for value in step.inputs if value is not None)
        if not needed.intersection(condition.inputs[: self.recurrences]):
            raise InternalError("Loop: expected a condition that reads a recurrence, got one that never changes")

    def _trips(self, length: Value | None) -> Size | None:
        if length is None:
            return None
        if length.sizes is None or len(length.sizes) != 1:
            raise InternalError(f"Loop: expected a count of one size, got {length!r}")
        return length.sizes[0]

    def _slice(self, value: Value, how: Iterated, trips: Size | None) -> Value:
        if not 0 <= how.axis < value.rank:
            raise InternalError(f"Loop: expected an axis in [0, {value.rank}) of an iterated tensor, got {how.axis}")
        if trips is None or not _same_size(value.shape[how.axis], trips, self.body):
            raise InternalError(f"Loop: expected as many trips as {value!r} has slices along axis {how.axis}, got {trips}")
        return Value(value.name, value.dtype, (*value.shape[: how.axis], *value.shape[how.axis + 1 :]))

    def _stack_axis(self, how: Collected, rank: int) -> int:
        if not 0 <= how.axis <= rank:
            raise InternalError(f"Loop: expected an axis in [0, {rank}] to collect along, got {how.axis}")
        return how.axis


def operand_input(body: Network, name: str, value: Value) -> Value:
    """An input of ``body`` that an operand feeds as it is, with the sizes that it holds."""
    result = recurrence_input(body, name, value)
    result.sizes = value.sizes
    return result


def recurrence_input(body: Network, name: str, value: Value) -> Value:
    """An input of ``body`` for a recurrence with the initial value ``value``."""
    return body.input(name, value.dtype, _fake(value).shape)


def slice_input(body: Network, name: str, value: Value, axis: int) -> Value:
    """An input of ``body`` for the slices of ``value`` along ``axis``."""
    shape = _fake(value).shape
    return body.input(name, value.dtype, (*shape[:axis], *shape[axis + 1 :]))


def _fake(value: Value) -> torch.Tensor:
    if value.fake is None:
        raise InternalError(f"{value!r}: a network read from a record takes no further layers")
    return value.fake


def _present(kind: str, values: Sequence[Value | None]) -> list[Value]:
    present = [value for value in values if value is not None]
    if len(present) != len(values) or not values:
        raise InternalError(f"{kind}: expected every operand of its bodies, got {', '.join(map(repr, values)) or 'none'}")
    return present


def _feed(what: str, body: Network, operands: Sequence[Value]) -> None:
    """Compares the operands that feed a body with its inputs."""
    if len(operands) != len(body.inputs):
        raise InternalError(f"{what}: expected {len(body.inputs)} operands for its inputs, got {len(operands)}")
    for value, operand in zip(body.inputs, operands, strict=True):
        _expect(f"{what}: operand for %{value.name}", operand, value.dtype, value.shape, body)
        if value.sizes is not None and value.sizes != operand.sizes:
            raise InternalError(f"{what}: operand for %{value.name} holds {operand.sizes}, expected the sizes {value.sizes}")


def _expect(what: str, value: Value, dtype: torch.dtype, shape: tuple[Size, ...], body: Network) -> None:
    same = value.dtype is dtype and value.rank == len(shape)
    if not (same and all(_same_size(left, right, body) for left, right in zip(value.shape, shape, strict=True))):
        name = str(dtype).removeprefix("torch.")
        raise InternalError(f"{what}: expected {name}[{', '.join(map(str, shape))}], got {value!r}")


def _same_size(left: Size, right: Size, body: Network) -> bool:
    verdict = statically_equal(left, right, body.fake_mode)
    # Only a network being written has a shape environment; what was decided with one may be undecided in a record of it.
    return verdict is True or (verdict is None and body.fake_mode.shape_env is None)
