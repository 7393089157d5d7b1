"""``NetworkConverter``: an engine segment to a network. Implements ``torchkiln_core.stages.SegmentConverter``."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.fx

from torchkiln_converters.arrival import NotStatic
from torchkiln_converters.conditionals import COND, Branch, Conditional, HeldTensor, held_inputs
from torchkiln_converters.decided import write_decided
from torchkiln_converters.folding import fold_channel_scales
from torchkiln_converters.registry import ConverterRegistry
from torchkiln_converters.simplify import simplify
from torchkiln_converters.unrounded import pool_unrounded
from torchkiln_converters.writing.shapes import reshape
from torchkiln_core import ConversionError, InternalError, KilnError, Network, OpCall, Program, Segment, Value, source_of
from torchkiln_core.inference import fake_mode_of, statically_equal
from torchkiln_core.layers import IfConditional, Shuffle, operand_input
from torchkiln_core.rejection import target_name
from torchkiln_core.size import sizes_of


class NetworkConverter:
    """Writes the layers of a segment, call by call, with the converters of a registry."""

    def __init__(self, registry: ConverterRegistry) -> None:
        self.registry = registry

    def convert(self, segment: Segment, program: Program) -> Network:
        """The network of an engine segment; weights are constants that hold the program's tensors by reference.

        Raises:
            ConversionError: A call has no converter, or its converter refuses it.
            InternalError: A converter broke its contract.
        """
        network = _of_segment(self.registry, segment, program)
        _rewrite(network)
        return network


def _rewrite(network: Network) -> None:
    """What is done to the layers of a network, or of a body in it, once all are written."""
    fold_channel_scales(network)
    pool_unrounded(network)
    write_decided(network)
    simplify(network)


def _of_segment(registry: ConverterRegistry, segment: Segment, program: Program) -> Network:
    """The layers of a segment as its converters write them."""
    nodes = list(segment.module.graph.nodes)
    fakes = [node.meta["val"] for node in nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    if not fakes:
        raise InternalError(f"{segment.name}: no tensor in the segment")
    net = Network(program.dims, fake_mode_of(fakes[0]))
    conversion = _Conversion(registry, segment.module, net, segment.name)
    names = {item.name: item.target or item.name for item in program.inputs}
    for node in segment.module.graph.find_nodes(op="placeholder"):
        if node.name in segment.inputs:
            fake = node.meta["val"]
            if not isinstance(fake, torch.Tensor):
                raise InternalError(f"{segment.name}: input {node.name} is no tensor", where=source_of(node))
            conversion.values[node] = net.input(node.name, fake.dtype, tuple(fake.shape))
        elif node.name in program.weights:
            conversion.held[node] = HeldTensor(program.weights[node.name], names[node.name])
    conversion.write_calls()
    returned = segment.module.graph.output_node().args[0]
    conversion.write_outputs(segment.outputs, returned if isinstance(returned, (tuple, list)) else (returned,))
    return net


class _Conversion:
    """The state of one conversion: the network and the values of the nodes converted so far.

    Args:
        registry: The converters.
        module: The graph of a segment, or of a branch of a call in it.
        net: Where layers are written.
        name: What the graph is, for errors.
        path: In front of the names of calls: those of a branch are parts of the call that runs it.

    Attributes:
        values: What a node became; the inputs of ``net`` to begin with.
        held: Placeholders that are weights.
    """

    def __init__(self, registry: ConverterRegistry, module: torch.fx.GraphModule, net: Network, name: str, path: str = "") -> None:
        self.registry = registry
        self.module = module
        self.net = net
        self.name = name
        self.path = path
        self.values: dict[torch.fx.Node, Value | tuple[Value | None, ...]] = {}
        self.held: dict[torch.fx.Node, HeldTensor] = {}

    def write_calls(self) -> None:
        """The layers of all calls. A weight is made a constant, and a symbolic integer evaluated, where it is first read."""
        for node in self.module.graph.nodes:
            if node.op == "call_function" and not _is_number(node.meta.get("val")):
                self._call(node)

    def _call(self, node: torch.fx.Node) -> None:
        if node.target is operator.getitem:
            self._pick(node)
            return
        call = OpCall.from_node(node)
        rejection = self.registry.reject(call)
        if rejection is not None:
            raise ConversionError(
                f"{rejection.target} [{rejection.rule}]: {rejection.message}", node=self.path + node.name, where=call.where
            )
        with self.net.scope(self.path + node.name, call.where):
            try:
                results = self._convert(call)
            except KilnError:
                raise
            except NotStatic as problem:
                raise ConversionError(f"{target_name(call.target)}: {problem}", node=self.path + node.name, where=call.where) from problem
            except Exception as error:
                raise InternalError(
                    f"converter of {target_name(call.target)} failed on {node.format_node()}: {error}",
                    layer=self.path + node.name,
                    where=call.where,
                ) from error
        self._check_contract(call, results)
        several = isinstance(node.meta["val"], (tuple, list))
        if several:
            self.values[node] = results
        elif results[0] is not None:
            self.values[node] = results[0]

    def _pick(self, node: torch.fx.Node) -> None:
        """One of several results."""
        source, index = node.args
        picked = self._tuple(source)[int(str(index))]
        if picked is not None:
            self.values[node] = picked
        elif node.users:
            raise InternalError(f"{source}: its converter leaves out result {index}, which {node.name} reads", where=source_of(node))

    def _convert(self, call: OpCall) -> tuple[Value | None, ...]:
        return self._conditional(call) if call.target is COND else self.registry[call.target].convert(self.net, call, self._value)

    def _check_contract(self, call: OpCall, results: tuple[Value | None, ...]) -> None:
        """Dtype and shape of each value equal those of the node's fake tensor."""
        if len(results) != len(call.outputs):
            raise InternalError(
                f"{target_name(call.target)}: expected {len(call.outputs)} results, got {len(results)}",
                layer=self.path + call.node.name,
                where=call.where,
            )
        for index, (value, fake) in enumerate(zip(results, call.outputs, strict=True)):
            if value is None:
                continue
            expected = sizes_of(fake.shape)
            same = value.dtype == fake.dtype and len(expected) == value.rank
            same = same and all(statically_equal(a, b, self.net.fake_mode) is not False for a, b in zip(value.shape, expected, strict=True))
            if not same:
                raise InternalError(
                    f"{target_name(call.target)}, result {index}: expected {fake.dtype} {list(expected)}, got {value!r}",
                    layer=self.path + call.node.name,
                    where=call.where,
                )

    def _value(self, node: torch.fx.Node) -> Value:
        if node not in self.values:
            self.values[node] = self._constant(node)
        found = self.values[node]
        if isinstance(found, tuple):
            raise InternalError(f"{node.name}: expected one tensor, got {len(found)}", where=source_of(node))
        return found

    def _tuple(self, node: Any) -> tuple[Value | None, ...]:
        found = self.values[node]
        return found if isinstance(found, tuple) else (found,)

    def _constant(self, node: torch.fx.Node) -> Value:
        held = self._held(node)
        if held is None:
            raise InternalError(f"{self.name}: {node.name} is neither an input, a weight nor a converted call", where=source_of(node))
        with self.net.scope(held.weight or self.path + node.name):
            return self.net.constant(held.tensor, weight=held.weight)

    def _held(self, node: torch.fx.Node) -> HeldTensor | None:
        """The tensor of a node that no call computes."""
        if node.op == "get_attr":
            tensor = operator.attrgetter(str(node.target))(self.module)
            return HeldTensor(tensor) if isinstance(tensor, torch.Tensor) else None
        return self.held.get(node)

    def _conditional(self, call: OpCall) -> tuple[Value | None, ...]:
        """``torch.cond``: weights become constants of the branches that read them, other tensors operands of the layer."""
        conditional = Conditional.of(call)
        if conditional is None:
            raise InternalError("expected a call of two graphs")
        held: dict[int, HeldTensor] = {}
        operands: dict[int, Value] = {}
        for index in sorted(conditional.read()):
            constant = self._held(conditional.operands[index])
            if constant is None:
                operands[index] = self._value(conditional.operands[index])
            else:
                held[index] = constant
        condition = reshape(self.net, self._value(conditional.predicate), ())
        then = self._body("then", call, conditional.then, operands, held)
        otherwise = self._body("otherwise", call, conditional.otherwise, operands, held)
        return self.net.add_many(IfConditional(then, otherwise), condition, *operands.values())

    def _body(self, name: str, call: OpCall, branch: Branch, operands: Mapping[int, Value], held: Mapping[int, HeldTensor]) -> Network:
        """The body that a graph becomes; it has an input for each operand, whether it reads it or not."""
        body = self.net.body(name)
        conversion = _Conversion(self.registry, branch.module, body, branch.name, f"{self.path}{call.node.name}/{name}/")
        conversion.held |= held_inputs(branch, held)
        for index, value in operands.items():
            conversion.values[branch.inputs[index]] = operand_input(body, branch.inputs[index].name, value)
        conversion.write_calls()
        conversion.write_outputs([f"result_{index}" for index in range(len(branch.outputs))], branch.outputs)
        _rewrite(body)
        return body

    def write_outputs(self, names: Sequence[str], returned: Sequence[Any]) -> None:
        """An input, a constant, and a value that is already an output pass through an identity layer: TensorRT marks none of them."""
        marked = set(self.net.inputs)
        for name, item in zip(names, returned, strict=True):
            if not isinstance(item, torch.fx.Node):
                raise InternalError(f"{self.name}: output {name} is no tensor")
            value = self._value(item)
            if value in marked or value.constant is not None:
                with self.net.scope(f"{self.path}output_{name}"):
                    value = self.net.add(Shuffle(), value)
            marked.add(value)
            self.net.output(name, value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool))
