"""``@converter``: a typed function whose parameters are an ATen schema's names, checked against the schema at import."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, ParamSpec, TypeAlias

import torch
from torch._ops import OpOverload
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from torchkiln_converters.arrival import Lookup, NotStatic, Parameter, Result, is_tensor_arrival, parameter, read, read_static
from torchkiln_converters.support import Equals, Support, tensors_of
from torchkiln_core import Network, OpCall, Rejection, Requires, Size, Value
from torchkiln_core.shape_tensor import has_layers
from torchkiln_core.size import sizes_of

P = ParamSpec("P")
Converted: TypeAlias = Value | Sequence[Value | None]
"""What a converter returns: a value, or one per result (``None`` for a result that nobody reads)."""

_IGNORABLE = frozenset({"layout", "device", "pin_memory", "memory_format", "non_blocking", "implicit", "generator"})
"""Arguments that say where or how a tensor is stored, which a network does not express."""
_RESULT_HINTS = {"result": Result, "results": tuple[Result, ...]}
"""Parameters that get dtype and shape of the call's first result, or of every one."""


@dataclass(frozen=True, slots=True)
class Converter(Generic[P]):
    """A function that writes the layers of a call, the operators it serves and the calls it takes.

    Calling it calls the function, so converters can use one another.
    """

    targets: tuple[OpOverload[..., Any], ...]
    support: Support
    function: Callable[P, Converted]
    parameters: tuple[Parameter, ...]
    results: str | None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Converted:
        """Writes the layers with arguments at hand."""
        return self.function(*args, **kwargs)

    def reject(self, call: OpCall) -> Rejection | None:
        """Why the call is refused, or ``None``. Rules: ``dtype``, ``rank``, ``static``, ``equals``, ``requires``."""
        rejection = self.support.reject(call)
        if rejection is not None:
            return rejection
        if bound := call.node.meta.get("unbacked_bindings"):
            sizes = ", ".join(map(str, bound))
            return Rejection.of(call, "static", f"result: expected sizes that follow from those of the arguments, got {sizes}")
        size = _rounded(call)
        if size is not None:
            return Rejection.of(call, "static", f"expected sizes of whole numbers, got {size}, which an engine cannot compute")
        for item in self.parameters:
            raw = call.arguments[item.name]
            if raw is None and item.optional:
                continue
            try:
                if raw is None:
                    raise NotStatic(f"{item.name}: expected a value, got None")
                if not is_tensor_arrival(item, raw):
                    read_static(item, raw)
            except NotStatic as problem:
                return Rejection.of(call, "static", str(problem))
        return None

    def deterministic(self) -> Converter[P]:
        """The same, refusing calls whose result depends on the order of writes: rule ``deterministic``."""
        unordered = self.support.unordered
        if unordered is None:
            return self
        ordered = Requires("a result that does not depend on the order of writes", lambda call: not unordered(call), "deterministic")
        return replace(self, support=self.support.requiring(ordered))

    def convert(self, net: Network, call: OpCall, lookup: Lookup) -> tuple[Value | None, ...]:
        """Writes the layers of ``call``; one value per result."""
        arguments = {item.name: read(item, call.arguments[item.name], lookup) for item in self.parameters}
        if self.results is not None:
            results = tuple(Result(output.dtype, sizes_of(output.shape)) for output in call.outputs)
            arguments[self.results] = results if self.results == "results" else results[0]
        converted = typing.cast(Callable[..., Converted], self.function)(net, **arguments)
        return (converted,) if isinstance(converted, Value) else tuple(converted)


def _rounded(call: OpCall) -> Size | None:
    """A size of an argument or result that no layers compute.

    What floating point rounds stands simplified in a size, where it may round otherwise than in the program: the sizes of an engine could
    not be checked, nor those of its results be known.
    """
    given = {size for argument in call.arguments.values() for tensor in tensors_of(argument) for size in sizes_of(tensor.shape)}
    made = {size for output in call.outputs if isinstance(output, torch.Tensor) for size in sizes_of(output.shape)}
    symbolic = (size for size in (*given, *made) if not isinstance(size, int) and not free_unbacked_symbols(size))
    return next((size for size in symbolic if not has_layers(size)), None)


def converter(
    targets: OpOverload[..., Any] | tuple[OpOverload[..., Any], ...],
    support: Support = Support(),  # noqa: B008
) -> Callable[[Callable[P, Converted]], Converter[P]]:
    """Makes a converter of a function ``(net, <schema names>, [result]) -> Value``.

    Annotations say how an argument arrives: ``Value``, ``Value | None``, ``Operand``, ``Sequence[Value]``, ``Sequence[Value | None]``,
    ``Size``, ``tuple[Size, ...]``, ``Scalar``, or a static ``int | float | bool | str | tuple[int, ...] | torch.dtype``; a parameter
    ``result: Result`` gets dtype and shape of the call's first result, ``results: tuple[Result, ...]`` those of all.

    Raises:
        TypeError: The function does not fit the schema.
    """

    def decorate(function: Callable[P, Converted]) -> Converter[P]:
        operators = targets if isinstance(targets, tuple) else (targets,)
        hints = typing.get_type_hints(function)
        names = list(inspect.signature(function).parameters)
        if not names or hints.get(names[0]) is not Network:
            raise TypeError(f"{function.__name__}: expected the first parameter to be `net: Network`")
        results = next((name for name in names[1:] if name in _RESULT_HINTS and hints[name] == _RESULT_HINTS[name]), None)
        taken = [name for name in names[1:] if name != results]
        parameters = tuple(parameter(name, hints[name]) for name in taken)
        for operator in operators:
            _check(function.__name__, operator._schema, parameters, support)
        return Converter(operators, support, function, parameters, results)

    return decorate


def _check(function: str, schema: torch._C.FunctionSchema, parameters: tuple[Parameter, ...], support: Support) -> None:
    arguments = {argument.name: argument for argument in schema.arguments}
    taken = {item.name for item in parameters}
    fixed = {rule.argument for rule in support.rules if isinstance(rule, Equals)}
    ignored = set(support.ignores)
    unknown = (taken | fixed | ignored | set(support.arguments)) - set(arguments)
    if unknown:
        raise TypeError(f"{function}: {', '.join(sorted(unknown))} not in {schema}")
    missing = set(arguments) - taken - fixed - ignored - _IGNORABLE
    if missing:
        names = ", ".join(sorted(missing))
        raise TypeError(f"{function}: {schema} has {names}; take it as a parameter, fix it by Equals, or list it in Support.ignores")
    for item in parameters:
        argument = arguments[item.name]
        kinds = {str(argument.type), str(argument.real_type)}
        bare = {kind.removeprefix("Optional[").removesuffix("]") if kind.startswith("Optional[") else kind for kind in kinds}
        if not item.fits(bare):
            raise TypeError(f"{function}: {item.name} is {argument.type} in {schema}, which does not arrive as {item.arrival.name}")
        if any(kind.startswith("Optional[") for kind in kinds) and not item.optional and not argument.has_default_value():
            raise TypeError(f"{function}: {item.name} may be None in {schema}; annotate it so")
