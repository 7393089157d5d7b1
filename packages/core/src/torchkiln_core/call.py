"""``OpCall``: one operator call of a graph, with its arguments by schema name. Nobody else decodes ``node.args``."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch._ops import OpOverload

from torchkiln_core.errors import InternalError

aten = torch.ops.aten

_FRAME = re.compile(r'File "(?P<path>.*)", line (?P<line>\d+)(?:, in (?P<function>.*))?')


def source_of(node: torch.fx.Node) -> str | None:
    """The user's source line and module of a node, such as ``model.py:12 in forward: x = self.conv(x) (module: layer1.0.conv1)``."""
    parts: list[str] = []
    trace = node.meta.get("stack_trace")
    line = _last_line(str(trace)) if trace else None
    if line is not None:
        parts.append(line)
    module = module_path(node)
    if module:
        parts.append(f"(module: {module})")
    return " ".join(parts) or None


@functools.lru_cache(maxsize=1024)
def _last_line(trace: str) -> str | None:
    """The innermost frame of a trace in a file of the user's; the calls of one line of a model share theirs."""
    lines = [line.strip() for line in trace.strip().splitlines()]
    found = [(index, frame) for index, line in enumerate(lines) if (frame := _FRAME.fullmatch(line))]
    # Code that torch generates, as it does to export what higher-order operators run, tells a user nothing.
    frames = [(index, frame) for index, frame in found if not frame["path"].startswith("<eval_with_key>")]
    if not frames:
        return None
    index, frame = frames[-1]
    code = lines[index + 1] if index + 1 < len(lines) else ""
    function = f" in {frame['function']}" if frame["function"] else ""
    return f"{frame['path']}:{frame['line']}{function}" + (f": {code}" if code else "")


def module_path(node: torch.fx.Node) -> str | None:
    """Qualified name of the innermost module that a node was traced in."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return None
    path = list(stack.values())[-1][0]
    return str(path) or None


@dataclass(frozen=True, slots=True)
class OpCall:
    """An ATen call: ``arguments`` by the names of its schema, defaults filled in; tensors stay FX nodes.

    ``outputs`` holds the fake tensors (or symbolic integers) that the call returns, one per result.
    """

    target: Callable[..., Any]
    arguments: Mapping[str, Any]
    outputs: tuple[Any, ...]
    node: torch.fx.Node
    where: str | None

    @staticmethod
    def from_node(node: torch.fx.Node) -> OpCall:
        """Decodes a ``call_function`` node.

        Raises:
            InternalError: The node is no call, lacks ``meta["val"]``, or its arguments do not fit the operator's schema.
        """
        if node.op != "call_function" or not callable(node.target):
            raise InternalError(f"node {node.name}: expected a call_function, got {node.op}", where=source_of(node))
        target, meta = node.target, node.meta
        if isinstance(target, OpOverload):
            arguments = _by_schema(node, target)
        else:
            arguments = {str(index): arg for index, arg in enumerate(node.args)} | dict(node.kwargs)
        if "val" not in meta:
            raise InternalError(f"node {node.name} ({target}): no meta['val']", where=source_of(node))
        value = meta["val"]
        outputs = tuple(value) if isinstance(value, (tuple, list)) else (value,)
        return OpCall(target, arguments, outputs, node, source_of(node))


_DECIDING = frozenset({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})
_COUNTING = frozenset({aten.repeat_interleave.self_Tensor, aten._unique.default})
"""Operators of this kind that have no tag in some version of PyTorch."""


def decided_by_data(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Calls whose result has a size that data decides, and all that is made of them; none in a graph that checks no number.

    The metadata of such a size proves nothing: once a check of it is traced, torch writes what the check says into all shapes.
    """
    found: set[torch.fx.Node] = set()
    if not graph.find_nodes(op="call_function", target=aten._assert_scalar.default, sort=False):
        return found
    for node in graph.nodes:
        if _has_size_of_data(node) or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def _has_size_of_data(node: torch.fx.Node) -> bool:
    """Whether data decides numbers or sizes of a call's result, or may do so: of an operator that is not PyTorch's own it is not known."""
    if node.meta.get("unbacked_bindings"):
        return True
    if not isinstance(node.target, OpOverload):
        return False
    if node.target.namespace not in ("aten", "prims"):
        return True
    if node.target is aten.index.Tensor:
        # Integers choose as many elements as there are of them.
        indices = OpCall.from_node(node).arguments["indices"]
        return any(index is not None and index.meta["val"].dtype in (torch.bool, torch.uint8) for index in indices)
    return node.target in _COUNTING or not _DECIDING.isdisjoint(node.target.tags)


def draws(call: OpCall) -> bool:
    """Whether a call of an operator that is tagged as random draws numbers.

    Attention, dropout and recurrent networks draw none in inference or at rate 0.
    """
    arguments = call.arguments
    off = any(arguments.get(name) is False for name in ("train", "training", "is_training"))
    return not off and not any(arguments.get(name) == 0 for name in ("dropout_p", "dropout"))


TRAINED_STATISTICS: Mapping[Any, str] = {
    aten.instance_norm.default: "use_input_stats",
    aten.batch_norm.default: "training",
    aten.native_batch_norm.default: "training",
    aten.cudnn_batch_norm.default: "training",
    aten.miopen_batch_norm.default: "training",
}
"""Operators that write to their running statistics in training, of which their schema says nothing; by the argument that says so."""


def writes_statistics(call: OpCall) -> bool:
    """Whether a call writes to running statistics: ``torch.export`` keeps such calls of ``instance_norm`` whole."""
    name = TRAINED_STATISTICS.get(call.target)
    return name is not None and bool(call.arguments[name]) and call.arguments["running_mean"] is not None


@dataclass(frozen=True, slots=True)
class _Signature:
    """The arguments of a schema: all names in order, those that may be positional, and defaults.

    ``rest`` holds, for each number of positional arguments, the defaults of all others in order, where they all have one.
    """

    names: tuple[str, ...]
    positional: tuple[str, ...]
    defaults: Mapping[str, Any]
    rest: tuple[Mapping[str, Any] | None, ...]


@functools.lru_cache(maxsize=4096)
def _signature(target: OpOverload) -> _Signature:
    # By operator: a schema with a list among its defaults cannot be hashed.
    arguments = target._schema.arguments
    names = tuple(argument.name for argument in arguments)
    positional = tuple(argument.name for argument in arguments if not argument.kwarg_only)
    defaults = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    in_order = positional == names[: len(positional)]
    rest = tuple(
        {name: defaults[name] for name in names[count:]} if in_order and defaults.keys() >= set(names[count:]) else None
        for count in range(len(positional) + 1)
    )
    return _Signature(names, positional, defaults, rest)


def _by_schema(node: torch.fx.Node, target: OpOverload) -> dict[str, Any]:
    signature = _signature(target)
    args, kwargs = node.args, node.kwargs
    if len(args) > len(signature.positional) or (kwargs and not kwargs.keys() <= set(signature.names)):
        raise InternalError(f"node {node.name}: arguments do not fit {target._schema}", where=source_of(node))
    given: dict[str, Any] = dict(zip(signature.positional, args, strict=False))
    if not kwargs:
        rest = signature.rest[len(args)]
        if rest is not None:
            given.update(rest)
            return given
    twice = sorted(given.keys() & kwargs.keys())
    if twice:
        raise InternalError(f"node {node.name}: {', '.join(twice)} given twice for {target._schema}", where=source_of(node))
    given |= kwargs
    try:
        return {name: given[name] if name in given else signature.defaults[name] for name in signature.names}
    except KeyError as missing:
        raise InternalError(f"node {node.name}: {target._schema} needs {missing.args[0]}", where=source_of(node)) from None
