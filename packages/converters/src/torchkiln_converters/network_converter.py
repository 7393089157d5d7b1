"""``NetworkConverter``: an engine segment to a network. Implements ``torchkiln_core.stages.SegmentConverter``."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
import torch.fx

from torchkiln_converters.arrival import NotStatic
from torchkiln_converters.decided import write_decided
from torchkiln_converters.folding import fold_channel_scales
from torchkiln_converters.registry import ConverterRegistry
from torchkiln_converters.simplify import simplify
from torchkiln_converters.unrounded import pool_unrounded
from torchkiln_core import ConversionError, InternalError, KilnError, Network, OpCall, Program, Segment, Value, source_of
from torchkiln_core.inference import fake_mode_of, statically_equal
from torchkiln_core.layers import Shuffle
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
        network = _Conversion(self.registry, segment, program).run()
        fold_channel_scales(network)
        pool_unrounded(network)
        write_decided(network)
        simplify(network)
        return network


class _Conversion:
    """The state of one conversion: the network and the values of the nodes converted so far."""

    def __init__(self, registry: ConverterRegistry, segment: Segment, program: Program) -> None:
        self.registry = registry
        self.segment = segment
        self.weights: Mapping[str, torch.Tensor] = program.weights
        self.names = {item.name: item.target or item.name for item in program.inputs}
        nodes = list(segment.module.graph.nodes)
        fakes = [node.meta["val"] for node in nodes if isinstance(node.meta.get("val"), torch.Tensor)]
        if not fakes:
            raise InternalError(f"{segment.name}: no tensor in the segment")
        self.net = Network(program.dims, fake_mode_of(fakes[0]))
        self.values: dict[torch.fx.Node, Value | tuple[Value | None, ...]] = {}

    def run(self) -> Network:
        for node in self.segment.module.graph.nodes:
            match node.op:
                case "placeholder" if node.name in self.segment.inputs:
                    self._input(node)
                case "placeholder" | "get_attr":
                    pass  # a weight, made a constant where it is first read
                case "output":
                    self._outputs(node)
                case _ if _is_number(node.meta.get("val")):
                    pass  # a symbolic integer, evaluated where it is read
                case _:
                    self._call(node)
        return self.net

    def _input(self, node: torch.fx.Node) -> None:
        fake = node.meta["val"]
        if not isinstance(fake, torch.Tensor):
            raise InternalError(f"{self.segment.name}: input {node.name} is no tensor", where=source_of(node))
        self.values[node] = self.net.input(node.name, fake.dtype, tuple(fake.shape))

    def _call(self, node: torch.fx.Node) -> None:
        if node.target is operator.getitem:
            source, index = node.args
            picked = self._tuple(source)[int(str(index))]
            if picked is not None:
                self.values[node] = picked
            elif node.users:
                raise InternalError(f"{source}: its converter leaves out result {index}, which {node.name} reads", where=source_of(node))
            return
        call = OpCall.from_node(node)
        rejection = self.registry.reject(call)
        if rejection is not None:
            raise ConversionError(f"{rejection.target} [{rejection.rule}]: {rejection.message}", node=node.name, where=call.where)
        with self.net.scope(node.name, call.where):
            try:
                results = self.registry[call.target].convert(self.net, call, self._value)
            except KilnError:
                raise
            except NotStatic as problem:
                raise ConversionError(f"{target_name(call.target)}: {problem}", node=node.name, where=call.where) from problem
            except Exception as error:
                raise InternalError(
                    f"converter of {target_name(call.target)} failed on {node.format_node()}: {error}", layer=node.name, where=call.where
                ) from error
        self._check_contract(call, results)
        several = isinstance(node.meta["val"], (tuple, list))
        if several:
            self.values[node] = results
        elif results[0] is not None:
            self.values[node] = results[0]

    def _check_contract(self, call: OpCall, results: tuple[Value | None, ...]) -> None:
        """Dtype and shape of each value equal those of the node's fake tensor."""
        if len(results) != len(call.outputs):
            raise InternalError(
                f"{target_name(call.target)}: expected {len(call.outputs)} results, got {len(results)}",
                layer=call.node.name,
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
                    layer=call.node.name,
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
        if node.op == "placeholder" and node.name in self.weights:
            name = self.names[node.name]
            with self.net.scope(name):
                return self.net.constant(self.weights[node.name], weight=name)
        if node.op == "get_attr":
            tensor = operator.attrgetter(str(node.target))(self.segment.module)
            with self.net.scope(node.name):
                return self.net.constant(tensor)
        raise InternalError(f"{self.segment.name}: {node.name} is neither an input, a weight nor a converted call", where=source_of(node))

    def _outputs(self, node: torch.fx.Node) -> None:
        """An input, a constant, and a value that is already an output pass through an identity layer: TensorRT marks none of them."""
        marked = set(self.net.inputs)
        returned = node.args[0] if isinstance(node.args[0], (tuple, list)) else (node.args[0],)
        for name, item in zip(self.segment.outputs, returned, strict=True):
            if not isinstance(item, torch.fx.Node):
                raise InternalError(f"{self.segment.name}: output {name} is no tensor")
            value = self._value(item)
            if value in marked or value.constant is not None:
                with self.net.scope(f"output_{name}"):
                    value = self.net.add(Shuffle(), value)
            marked.add(value)
            self.net.output(name, value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool))
