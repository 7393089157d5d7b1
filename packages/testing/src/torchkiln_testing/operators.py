"""``check_op``: one operator call, converted, run by an engine and compared with eager PyTorch."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils import _pytree as pytree

from torchkiln_core import DimRange, InputKind, Interpreter, Network, OpCall, Program, ProgramInput, Segment
from torchkiln_core.stages import Engine, PlanBuilder, SegmentConverter
from torchkiln_testing.compare import assert_same
from torchkiln_testing.tolerance import OpClass

MIN_DYNAMIC = 2
"""The smallest size that captured programs keep symbolic by default."""


@dataclass(frozen=True, slots=True)
class SizeOf:
    """Stands for a size in the arguments: dimension ``dim`` of tensor ``tensor`` (counted over all arguments), plus ``plus``."""

    tensor: int
    dim: int
    plus: int = 0


@dataclass(frozen=True, slots=True)
class OpCase:
    """A call to check.

    Attributes:
        op: The operator.
        args: Tensors and other values by the schema.
        kwargs: More of them.
        dynamic: ``(tensor, dimension)`` pairs that are symbolic; those of one size share a symbol.
        weights: Tensors that are weights of the network instead of inputs.
        op_class: What bounds the error.
        results: Indices of the results that are read; all by default.
    """

    op: OpOverload[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    dynamic: tuple[tuple[int, int], ...] = ()
    weights: tuple[int, ...] = ()
    op_class: OpClass = OpClass.POINTWISE
    results: tuple[int, ...] | None = None

    def __str__(self) -> str:
        shapes = ",".join("x".join(map(str, tensor.shape)) or "0d" for tensor in self.tensors())
        dtype = next((str(tensor.dtype).removeprefix("torch.") for tensor in self.tensors()), "none")
        return f"{str(self.op).removeprefix('aten.')}-{shapes}-{dtype}{'-dynamic' if self.dynamic else ''}"

    def tensors(self) -> list[torch.Tensor]:
        """Every tensor among the arguments, in order."""
        return [leaf for leaf in pytree.tree_leaves((self.args, dict(self.kwargs))) if isinstance(leaf, torch.Tensor)]

    def with_tensors(self, function: Callable[[int, torch.Tensor], torch.Tensor]) -> OpCase:
        """The case with each tensor replaced by ``function(index, tensor)``."""
        count = iter(range(len(self.tensors())))

        def replace(leaf: Any) -> Any:
            return function(next(count), leaf) if isinstance(leaf, torch.Tensor) else leaf

        args, kwargs = pytree.tree_map(replace, (self.args, dict(self.kwargs)))
        return dataclasses.replace(self, args=args, kwargs=kwargs)

    def with_floats(self, dtype: torch.dtype) -> OpCase:
        """The case with its floating tensors in another dtype."""
        return self.with_tensors(lambda _, tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)

    def sized(self, change: Callable[[int], int]) -> OpCase:
        """The case with every dynamic dimension of size ``n`` in size ``change(n)``; elements repeat or go."""
        dims: dict[int, list[int]] = {}
        for index, dim in self.dynamic:
            dims.setdefault(index, []).append(dim)

        def resize(index: int, tensor: torch.Tensor) -> torch.Tensor:
            for dim in dims.get(index, ()):
                size = tensor.shape[dim]
                tensor = tensor.index_select(dim, torch.arange(change(size)) % size)
            return tensor

        return self.with_tensors(resize)

    def eager(self) -> tuple[torch.Tensor, ...]:
        """What PyTorch returns: the results that are read."""
        sizes = self.tensors()

        def resolve(leaf: Any) -> Any:
            return sizes[leaf.tensor].shape[leaf.dim] + leaf.plus if isinstance(leaf, SizeOf) else leaf

        args, kwargs = pytree.tree_map(resolve, (self.args, dict(self.kwargs)))
        result = self.op(*args, **kwargs)
        results = tuple(result) if isinstance(result, (tuple, list)) else (result,)
        return results if self.results is None else tuple(results[index] for index in self.results)


@dataclass(frozen=True, slots=True)
class TracedCall:
    """A program of one call, its node, and the inputs that the program takes."""

    program: Program
    segment: Segment
    node: torch.fx.Node
    inputs: tuple[int, ...]

    @property
    def call(self) -> OpCall:
        """The call by schema names."""
        return OpCall.from_node(self.node)


def trace_call(case: OpCase) -> TracedCall:
    """Writes the graph of a single call by hand, so that no operator is decomposed."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=False)
    graph = torch.fx.Graph()
    nodes: list[torch.fx.Node] = []
    for index, tensor in enumerate(case.tensors()):
        node = graph.placeholder(f"arg{index}")
        node.meta["val"] = _fake(mode, case, index, tensor)
        nodes.append(node)
    remaining = iter(nodes)

    def as_node(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return next(remaining)
        return _size_node(graph, nodes, leaf) if isinstance(leaf, SizeOf) else leaf

    args, kwargs = pytree.tree_map(as_node, (case.args, dict(case.kwargs)))
    node = graph.call_function(case.op, args, kwargs)
    fake_args, fake_kwargs = torch.fx.node.map_arg((args, kwargs), lambda item: item.meta["val"])
    with mode, enable_python_dispatcher():
        node.meta["val"] = case.op(*fake_args, **fake_kwargs)
    outputs = _outputs(graph, node, case.results)
    graph.output(tuple(outputs)).meta["val"] = tuple(item.meta["val"] for item in outputs)
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    return _traced(case, module, node, outputs)


def _traced(case: OpCase, module: torch.fx.GraphModule, node: torch.fx.Node, outputs: list[torch.fx.Node]) -> TracedCall:
    tensors = case.tensors()
    kinds = [InputKind.WEIGHT if index in case.weights else InputKind.USER for index in range(len(tensors))]
    inputs = tuple(
        ProgramInput(f"arg{index}", kind, f"weight{index}" if kind is InputKind.WEIGHT else None) for index, kind in enumerate(kinds)
    )
    weights = {f"arg{index}": tensors[index] for index in case.weights}
    program = Program(module, inputs, weights, _ranges(case, module))
    names = tuple(f"output{index}" for index in range(len(outputs)))
    segment = Segment("engine_0", "engine", module, program.user_inputs, tuple(weights), names, (str(case.op),))
    return TracedCall(program, segment, node, tuple(index for index in range(len(tensors)) if index not in case.weights))


def check_op(case: OpCase, converter: SegmentConverter, builder: PlanBuilder | None = None) -> Network:
    """Converts the call and compares the reference engine with eager PyTorch, at the smallest, given and largest dynamic sizes.

    With a ``builder`` the network is built too, which shows what TensorRT accepts.

    Raises:
        AssertionError: Values, dtype, shape or number of results differ.
    """
    network = check_op_in(case, converter, Interpreter)
    if builder is not None:
        builder.build(network)
    return network


def check_op_in(case: OpCase, converter: SegmentConverter, load: Callable[[Network], Engine], device: str = "cpu") -> Network:
    """Converts the call and compares the engine that ``load`` makes of it with eager PyTorch on ``device``, at the same sizes.

    Raises:
        AssertionError: Values, dtype, shape, device or number of results differ.
    """
    traced = trace_call(case)
    network = converter.convert(traced.segment, traced.program)
    run = load(network)
    sizes: tuple[Callable[[int], int], ...] = (lambda size: size, _smallest, _largest) if case.dynamic else (lambda size: size,)
    for change in sizes:
        sized = case.sized(change).with_tensors(lambda _, tensor: tensor.to(device))
        tensors = sized.tensors()
        got = run(*(tensors[index] for index in traced.inputs))
        # A call without tensors makes its result on the host.
        assert_same(tuple(result.to(device) for result in sized.eager()), got, case.op_class, where=str(sized))
    return network


def _smallest(size: int) -> int:
    return MIN_DYNAMIC


def _largest(size: int) -> int:
    return 2 * size + 1


def _fake(mode: FakeTensorMode, case: OpCase, index: int, tensor: torch.Tensor) -> torch.Tensor:
    dims = [DimDynamic.DUCK if (index, dim) in case.dynamic else DimDynamic.STATIC for dim in range(tensor.dim())]
    context: Any = StatelessSymbolicContext(dynamic_sizes=dims)
    # No view: of one, its base would be made fake as well, with symbols that stand for nothing here.
    alone = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return mode.from_tensor(alone, static_shapes=False, symbolic_context=context, source=ConstantSource(f"arg{index}"))


def _size_node(graph: torch.fx.Graph, nodes: list[torch.fx.Node], size: SizeOf) -> torch.fx.Node:
    source = nodes[size.tensor]
    node = graph.call_function(torch.ops.aten.sym_size.int, (source, size.dim))
    node.meta["val"] = source.meta["val"].shape[size.dim]
    if size.plus:
        node = graph.call_function(operator.add, (node, size.plus))
        node.meta["val"] = source.meta["val"].shape[size.dim] + size.plus
    return node


def _outputs(graph: torch.fx.Graph, node: torch.fx.Node, results: tuple[int, ...] | None) -> list[torch.fx.Node]:
    value = node.meta["val"]
    if not isinstance(value, (tuple, list)):
        return [node]
    outputs = []
    for index in range(len(value)) if results is None else results:
        item = graph.call_function(operator.getitem, (node, index))
        item.meta["val"] = value[index]
        outputs.append(item)
    return outputs


def _ranges(case: OpCase, module: torch.fx.GraphModule) -> dict[str, DimRange]:
    """Range of each symbol: around the size that the case gives."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    ranges: dict[str, DimRange] = {}
    for index, dim in case.dynamic:
        name = str(placeholders[index].meta["val"].shape[dim])
        size = case.tensors()[index].shape[dim]
        ranges[name] = DimRange(name, MIN_DYNAMIC, size, _largest(size))
    return ranges
