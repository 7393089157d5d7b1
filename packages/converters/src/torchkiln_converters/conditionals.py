"""Calls of ``torch.cond``: which ones become a conditional layer, and what their graphs compute."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import sympy
import torch
import torch.fx
from torch._ops import OpOverload

from torchkiln_converters.support import MAX_RANK, NETWORK_DTYPES
from torchkiln_core import OpCall, Rejection, Size
from torchkiln_core.size import size_of, sizes_of

COND = torch.ops.higher_order.cond
"""``cond(Tensor pred, GraphModule true, GraphModule false, Any[] operands) -> Tensor[]``."""

Reject: TypeAlias = Callable[[OpCall], Rejection | None]
"""Why a call cannot be converted."""
_CONVOLUTIONS = {
    *(torch.ops.aten.conv1d, torch.ops.aten.conv2d, torch.ops.aten.conv3d, torch.ops.aten.convolution),
    *(torch.ops.aten.conv_transpose1d, torch.ops.aten.conv_transpose2d, torch.ops.aten.conv_transpose3d),
}
_NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True, slots=True)
class Branch:
    """A graph of the call.

    Attributes:
        name: Name of the graph, such as ``true_graph_0``.
        module: The graph.
        inputs: Its placeholders, one per operand of the call.
        outputs: What it returns.
    """

    name: str
    module: torch.fx.GraphModule
    inputs: tuple[torch.fx.Node, ...]
    outputs: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Conditional:
    """A call of ``torch.cond`` taken apart.

    Attributes:
        predicate: Decides; a node, or a number.
        operands: What both graphs are called with.
        then: The graph that runs where the predicate is true.
        otherwise: The other one.
    """

    predicate: Any
    operands: tuple[Any, ...]
    then: Branch
    otherwise: Branch

    @staticmethod
    def of(call: OpCall) -> Conditional | None:
        """``None`` where the call is not as ``torch.cond`` is traced: its graphs are attributes of the module that holds the call."""
        predicate, then, otherwise, operands = (call.arguments.get(str(index)) for index in range(4))
        branches = [_branch_of(call.node, argument) for argument in (then, otherwise)]
        if None in branches or not isinstance(operands, (tuple, list)) or len(call.arguments) != len("0123"):
            return None
        found = [branch for branch in branches if branch is not None and len(branch.inputs) == len(operands)]
        return Conditional(predicate, tuple(operands), *found) if len(found) == len(branches) else None

    @property
    def branches(self) -> tuple[Branch, Branch]:
        """Both graphs."""
        return self.then, self.otherwise

    def read(self) -> frozenset[int]:
        """Positions of the operands that a graph reads, tensors only; weights are among them."""
        return frozenset(
            index
            for branch in self.branches
            for index, node in enumerate(branch.inputs)
            if node.users and isinstance(node.meta.get("val"), torch.Tensor)
        )


def reject_conditional(call: OpCall, reject: Reject) -> Rejection | None:
    """Why a call of ``torch.cond`` becomes no layer, or ``None``; the rule of a call in a graph that is refused is that of the refusal."""
    conditional = Conditional.of(call)
    if conditional is None:
        return Rejection.of(call, "requires", "requires two graphs that are called with the operands")
    for rule, problem in _problems(call, conditional):
        return Rejection.of(call, rule, problem)
    for branch in conditional.branches:
        found = _refused(branch, reject)
        if found is not None:
            return Rejection.of(call, found.rule, f"{branch.name}: {found.target} ({found.node}): {found.message}")
    return None


def _branch_of(node: torch.fx.Node, argument: Any) -> Branch | None:
    owner = node.graph.owning_module
    if owner is None or not isinstance(argument, torch.fx.Node) or argument.op != "get_attr":
        return None
    module = operator.attrgetter(str(argument.target))(owner)
    if not isinstance(module, torch.fx.GraphModule):
        return None
    returned = module.graph.output_node().args[0]
    outputs = tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)
    return Branch(str(argument.target), module, tuple(module.graph.find_nodes(op="placeholder")), outputs)


def _problems(call: OpCall, conditional: Conditional) -> Iterator[tuple[str, str]]:
    """Rule and message of what is wrong, besides calls in the graphs."""
    predicate = conditional.predicate
    value = predicate.meta.get("val") if isinstance(predicate, torch.fx.Node) else predicate
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.bool:
        yield "dtype", f"pred: expected a bool tensor, got {value.dtype if isinstance(value, torch.Tensor) else value}"
        return
    if value.dim() > MAX_RANK or sizes_of(value.shape) != (1,) * value.dim():
        yield "static", f"pred: expected one element, got {list(value.shape)}"
    if call.node.meta.get("unbacked_bindings"):
        yield "static", "result: expected sizes that follow from those of the operands, got some that depend on which graph runs"
    if not call.outputs or not all(isinstance(output, torch.Tensor) for output in call.outputs):
        yield "requires", "requires results that are tensors"
        return
    device = call.outputs[0].device
    for branch in conditional.branches:
        yield from _result_problems(branch, call.outputs)
        for node in branch.module.graph.nodes:
            problem = _node_problem(node, device, branch)
            if problem is not None:
                yield problem[0], f"{branch.name}: {node.name}: {problem[1]}"
    yield from _size_problems(conditional)
    yield from _nesting_problems(conditional)
    yield from _kernel_problems(conditional)


def _result_problems(branch: Branch, results: Sequence[torch.Tensor]) -> Iterator[tuple[str, str]]:
    """Both branches of a layer return the same dtypes and shapes."""
    values = [output.meta.get("val") if isinstance(output, torch.fx.Node) else output for output in branch.outputs]
    shown = ", ".join(_shown(value) for value in values)
    expected = [(result.dtype, sizes_of(result.shape)) for result in results]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if len(tensors) < len(values) or [(value.dtype, sizes_of(value.shape)) for value in tensors] != expected:
        yield "requires", f"{branch.name}: expected it to return {', '.join(map(_shown, results))}, got {shown}"


def _node_problem(node: torch.fx.Node, device: torch.device, branch: Branch) -> tuple[str, str] | None:
    """What a graph must be made of: calls that only compute, on dense tensors of one device in dtypes that networks have."""
    if node.op == "output" or (node.op == "placeholder" and not node.users):
        return None
    if node.op not in ("placeholder", "call_function", "get_attr"):
        return "requires", f"expected calls of operators only, got {node.op}"
    if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
        return "requires", f"expected calls that only compute their results, got {node.target}"
    if node.op != "get_attr" and "val" not in node.meta:
        return "requires", "expected the type of every value to be known"
    value: Any = operator.attrgetter(str(node.target))(branch.module) if node.op == "get_attr" else node.meta["val"]
    tensors = [item for item in (value if isinstance(value, (tuple, list)) else (value,)) if isinstance(item, torch.Tensor)]
    problems = (_tensor_problem(tensor, device, given=node.op != "call_function") for tensor in tensors)
    return next((problem for problem in problems if problem is not None), None)


def _tensor_problem(tensor: torch.Tensor, device: torch.device, *, given: bool) -> tuple[str, str] | None:
    """``given``: the tensor is an operand or a constant, which no converter is asked about."""
    if tensor.device != device:
        return "device", f"expected a tensor on {device}, got one on {tensor.device}"
    if tensor.layout is not torch.strided:
        return "requires", f"expected a strided tensor, got {tensor.layout}"
    if given and (tensor.dtype not in NETWORK_DTYPES or tensor.dim() > MAX_RANK):
        return "dtype", f"expected a tensor as networks have them, got {_shown(tensor)}"
    return None


def _size_problems(conditional: Conditional) -> Iterator[tuple[str, str]]:
    """A body of a layer computes sizes from the shapes of its own operands."""
    given = {size for index in conditional.read() for size in sizes_of(conditional.then.inputs[index].meta["val"].shape)}
    plain = {size for size in given if isinstance(size, sympy.Symbol)}
    for branch in conditional.branches:
        for node in branch.module.graph.nodes:
            if node.op != "output" and (node.op != "placeholder" or node.users):
                for size in _sizes_in(node.meta.get("val")):
                    if size not in given and not isinstance(size, int) and not size.free_symbols <= plain:
                        yield "static", f"{branch.name}: {node.name}: expected sizes that the shapes of its operands tell, got {size}"


def _nesting_problems(conditional: Conditional) -> Iterator[tuple[str, str]]:
    """TensorRT-RTX 1.6 fails to build a conditional in a conditional of dynamic sizes, and does not say which layer is to blame."""
    nodes = [node for branch in conditional.branches for node in branch.module.graph.nodes]
    inner = next((node for node in nodes if node.target is COND), None)
    sizes = [size for node in nodes if node.op != "output" for size in _sizes_in(node.meta.get("val"))]
    if inner is not None and not all(isinstance(size, int) for size in sizes):
        yield "static", f"{inner.name}: expected static sizes around a conditional in a conditional"


def _kernel_problems(conditional: Conditional) -> Iterator[tuple[str, str]]:
    """TensorRT-RTX 1.6 finds no kernel on the GPU for a convolution in a conditional, after it has built one (dynamic sizes)."""
    for branch in conditional.branches:
        for node in branch.module.graph.nodes:
            if isinstance(node.target, OpOverload) and node.target.overloadpacket in _CONVOLUTIONS:
                yield "requires", f"{branch.name}: {node.name}: requires graphs without convolutions"


def _sizes_in(value: Any) -> Iterator[Size]:
    for item in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(item, torch.Tensor):
            yield from sizes_of(item.shape)
        elif isinstance(item, torch.SymInt):
            yield size_of(item)


def _refused(branch: Branch, reject: Reject) -> Rejection | None:
    """The first refusal of a call in a graph."""
    calls = [node for node in branch.module.graph.nodes if node.op == "call_function" and node.target is not operator.getitem]
    refusals = (reject(OpCall.from_node(node)) for node in calls if not isinstance(node.meta["val"], _NUMBERS))
    return next((found for found in refusals if found is not None), None)


def _shown(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return str(value)
    return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """A tensor that a network holds as a constant; ``weight`` is its name where it is a weight."""

    tensor: torch.Tensor
    weight: str | None = None


def held_inputs(branch: Branch, held: Mapping[int, HeldTensor]) -> dict[torch.fx.Node, HeldTensor]:
    """The inputs of a graph that are constants, by placeholder."""
    return {branch.inputs[index]: tensor for index, tensor in held.items() if branch.inputs[index].users}
