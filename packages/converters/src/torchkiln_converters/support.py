"""``Support``: which calls a converter takes, as data. It drives refusal, the generated refusal tests and the operator table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol

import torch
import torch.fx

from torchkiln_core import OpCall, Rejection, Requires

FLOATS = frozenset({torch.float32, torch.float16, torch.bfloat16})
"""Floating dtypes that every arithmetic layer takes."""
INTEGERS = frozenset({torch.int32, torch.int64})
"""Integer dtypes that layers compute with."""
BOOLS = frozenset({torch.bool})
"""The dtype of conditions."""
NUMBERS = FLOATS | INTEGERS
"""Dtypes with arithmetic and order."""
NETWORK_DTYPES = NUMBERS | BOOLS
"""Every dtype that values of a network have."""
BYTES = frozenset({torch.int8, torch.uint8})
"""Integers of one byte, which layers convert, scale or (int8 only) move."""
FP8 = frozenset({torch.float8_e4m3fn})
"""The float of one byte that TensorRT has, which it takes where it is scaled only."""
MAX_RANK = 8
"""TensorRT's limit."""


class Rule(Protocol):
    """A condition on a call, with the stable id under which it refuses."""

    @property
    def rule(self) -> str:
        """The id in ``Rejection.rule``."""
        ...

    def problem(self, call: OpCall) -> str | None:
        """What was expected and found, or ``None`` when the call satisfies the rule."""
        ...


@dataclass(frozen=True, slots=True)
class Equals:
    """An argument of the schema must hold one fixed value, so the converter does not take it."""

    argument: str
    value: Any
    rule: str = field(default="equals", init=False)

    def problem(self, call: OpCall) -> str | None:
        """See ``Rule``."""
        found = call.arguments[self.argument]
        if isinstance(found, list):
            found = tuple(found)
        same = found is self.value or (not isinstance(found, torch.fx.Node) and found == self.value)
        return None if same else f"{self.argument}: expected {self.value!r}, got {found}"


def static_shape(argument: str) -> Requires:
    """Every dimension of a tensor argument is known when the engine is built."""
    return Requires(f"a static shape of {argument}", lambda call: all(isinstance(dim, int) for dim in fake(call, argument).shape), "static")


def only_output(index: int) -> Requires:
    """Of several results, only one is read."""
    return Requires(f"that only result {index} is used", lambda call: used_outputs(call.node) <= {index})


def same_dtype(*arguments: str) -> Requires:
    """Tensor arguments have one dtype; those left out do not count."""

    def holds(call: OpCall) -> bool:
        tensors = [fake(call, name) for name in arguments if call.arguments[name] is not None]
        return len({tensor.dtype for tensor in tensors}) <= 1

    return Requires(f"one dtype of {', '.join(arguments)}", holds)


def fake(call: OpCall, argument: str) -> torch.Tensor:
    """The fake tensor of a tensor argument."""
    node = call.arguments[argument]
    value: torch.Tensor = node.meta["val"]
    return value


def used_outputs(node: torch.fx.Node) -> frozenset[int]:
    """Indices of the results that ``getitem`` nodes with users pick from a call."""
    return frozenset(int(str(user.args[1])) for user in node.users if user.users)


def tensors_of(argument: Any) -> Iterator[torch.Tensor]:
    """The fake tensors in an argument."""
    items = argument if isinstance(argument, (list, tuple)) else (argument,)
    for item in items:
        value = item.meta.get("val") if isinstance(item, torch.fx.Node) else item
        if isinstance(value, torch.Tensor):
            yield value


@dataclass(frozen=True, slots=True)
class Support:
    """Which calls a converter takes.

    Attributes:
        dtypes: Of every tensor argument that ``arguments`` does not name.
        ranks: Of the first tensor argument.
        arguments: Dtypes of particular arguments.
        results: Dtypes that the results may have.
        rules: Further conditions.
        ignores: Arguments that change no result, or whose effect the result's dtype and shape tell already.
        unordered: Whether a call's result depends on the order of writes, as where two indices of a scatter are equal; such calls are
            refused where ``deterministic`` is asked for.
    """

    dtypes: frozenset[torch.dtype] = NETWORK_DTYPES
    ranks: range = range(MAX_RANK + 1)
    arguments: Mapping[str, frozenset[torch.dtype]] = field(default_factory=lambda: MappingProxyType({}))
    results: frozenset[torch.dtype] = NETWORK_DTYPES
    rules: tuple[Rule, ...] = ()
    ignores: tuple[str, ...] = ()
    unordered: Callable[[OpCall], bool] | None = None

    def requiring(self, *rules: Rule) -> Support:
        """The same with more rules."""
        return replace(self, rules=(*self.rules, *rules))

    def reject(self, call: OpCall) -> Rejection | None:
        """Why a call is refused: first its dtypes, then its ranks, then the rules in order."""
        for rule, problem in self._problems(call):
            return Rejection.of(call, rule, problem)
        return None

    def _problems(self, call: OpCall) -> Iterator[tuple[str, str]]:
        arguments = [(name, tensor) for name, argument in call.arguments.items() for tensor in tensors_of(argument)]
        results = [("result", output) for output in call.outputs if isinstance(output, torch.Tensor)]
        for name, tensor in arguments:
            yield from _dtype_problems(name, tensor, self.arguments.get(name, self.dtypes))
        for name, tensor in results:
            yield from _dtype_problems(name, tensor, self.results)
        if arguments and arguments[0][1].dim() not in self.ranks:
            name, tensor = arguments[0]
            yield "rank", f"{name}: expected a rank in [{self.ranks.start}, {self.ranks.stop - 1}], got {tensor.dim()}"
        for name, tensor in arguments + results:
            if tensor.dim() > MAX_RANK:
                yield "rank", f"{name}: expected a rank of at most {MAX_RANK}, got {tensor.dim()}"
        for rule in self.rules:
            problem = rule.problem(call)
            if problem is not None:
                yield rule.rule, problem


def _dtype_problems(name: str, tensor: torch.Tensor, allowed: frozenset[torch.dtype]) -> Iterator[tuple[str, str]]:
    if tensor.dtype not in allowed:
        yield "dtype", f"{name}: expected {_names(allowed)}, got {_name(tensor.dtype)}"
    if tensor.layout is not torch.strided:
        yield "requires", f"{name}: expected a strided tensor, got {tensor.layout}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _names(dtypes: frozenset[torch.dtype]) -> str:
    return " or ".join(sorted(map(_name, dtypes)))
