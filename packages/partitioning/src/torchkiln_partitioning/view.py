"""``ProgramView``: the live nodes of a program and what each is to the division, before anyone asks where it runs."""

from __future__ import annotations

import enum
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch._ops import HigherOrderOperator, OpOverload

from torchkiln_core.call import source_of
from torchkiln_core.errors import InternalError
from torchkiln_core.program import InputKind, Program
from torchkiln_core.size import Size, sizes_of
from torchkiln_partitioning.effects import Effect, attribute, find_effects

aten = torch.ops.aten

SIZE_READERS = frozenset({aten.sym_size.int, aten.sym_stride.int, aten.sym_numel.default, aten.sym_storage_offset.default})
CHECKS = frozenset({aten._assert_scalar.default, aten.sym_constrain_range.default, aten.sym_constrain_range_for_size.default})
_MAKERS = frozenset({aten.full, aten.zeros, aten.ones, aten.arange, aten.scalar_tensor, aten.eye})
VIEWS = frozenset(
    {
        aten.alias, aten.detach, aten.expand, aten.permute, aten.reshape, aten.select, aten.slice, aten.squeeze, aten.t, aten.transpose,
        aten.unsqueeze, aten.view, aten._unsafe_view,
    }
)  # fmt: skip
NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
NOBODY = -1
"""In a table of positions: no node."""


class Role(enum.Enum):
    """What a node is to the division."""

    INPUT = "input"
    """A value that every call supplies; passes around segments."""
    WEIGHT = "weight"
    """Known to both sides; never crosses a border."""
    ATTRIBUTE = "attribute"
    """The body of a higher-order call; goes where the call goes."""
    SIZE = "size"
    """Computes a symbolic number from others or from a shape; belongs to no segment."""
    CHECK = "check"
    """Checks a symbolic number; runs between segments, as soon as the number is known."""
    CHEAP = "cheap"
    """Makes a constant from numbers, or views a weight: each reader may have its own copy."""
    PART = "part"
    """One result of a call that has several; goes where the call goes."""
    CALL = "call"
    """Anything else: runs once, in one segment."""


@dataclass(frozen=True, slots=True)
class ProgramView:
    """A program seen by the partitioner, which knows a node by its position among the live ones; tables have an entry per position.

    Attributes:
        program: The program.
        nodes: Live nodes in graph order, without the output node.
        index: Position of each live node.
        reads: What each node reads, each once.
        readers: Who reads each node, in order.
        roles: Role of each node.
        owners: For ``CALL`` and ``PART`` nodes, the call that the value comes from; else ``NOBODY``.
        effects: Calls that do more than compute their result.
        results: What the program returns.
        whole: Calls that have a segment of their own: higher-order calls run graphs that no neighbour may be fused with.
        sizes: The shape ``[*]`` of each node that is one tensor, empty for sparse ones, whose shape no engine reads; else ``None``.
        varying: Tensors with a size that is no integer.
        numbers: Nodes whose value is a Python or symbolic number.
        devices: The device of each node that is one dense real tensor, else ``None``.
        item_bytes: Bytes of an element of each node that is one tensor.
    """

    program: Program
    nodes: Sequence[torch.fx.Node]
    index: Mapping[torch.fx.Node, int]
    reads: Sequence[Sequence[int]]
    readers: Sequence[Sequence[int]]
    roles: Sequence[Role]
    owners: Sequence[int]
    effects: Mapping[int, Effect]
    results: tuple[Any, ...]
    whole: frozenset[int]
    sizes: Sequence[tuple[Size, ...] | None]
    varying: frozenset[int]
    numbers: frozenset[int]
    devices: Sequence[torch.device | None]
    item_bytes: Sequence[int]

    def operators(self) -> Iterator[int]:
        """The operators of the program as users see them, in order: no parts, no sizes."""
        call, cheap = Role.CALL, Role.CHEAP
        return (position for position, role in enumerate(self.roles) if role is call or role is cheap)

    def result_positions(self) -> set[int]:
        """The nodes that the program returns."""
        return {self.index[value] for value in self.results if isinstance(value, torch.fx.Node)}


def view_program(program: Program) -> ProgramView:
    """Finds the live nodes of a program and their roles.

    Raises:
        InternalError: The graph breaks a promise of ``Program``.
    """
    output = next(iter(program.module.graph.find_nodes(op="output")))
    results = output.args[0]
    if not isinstance(results, (tuple, list)):
        raise InternalError(f"program: expected the output to be a flat tuple, got {results!r}")
    effects = find_effects(program.module)
    nodes, read_nodes = _live_nodes(program, {*output.all_input_nodes, *effects})
    index = dict(zip(nodes, range(len(nodes)), strict=True))
    found = _Reading(program, nodes, [[index[other] for other in others] for others in read_nodes], {index[node] for node in effects})
    for position, node in enumerate(nodes):
        found.add(position, node)
    for position in found.several:
        readers = [nodes[user].name for user in found.readers[position] if found.roles[user] is not Role.PART]
        if readers or nodes[position] in output.all_input_nodes:
            names = ", ".join(readers or ["the output"])
            raise InternalError(f"program: {names} reads all results of {nodes[position].name} at once", where=source_of(nodes[position]))
    return ProgramView(
        program=program,
        nodes=nodes,
        index=index,
        reads=found.reads,
        readers=found.readers,
        roles=found.roles,
        owners=found.owners,
        effects={index[node]: effect for node, effect in effects.items()},
        results=tuple(results),
        whole=frozenset(found.whole),
        sizes=found.sizes,
        varying=frozenset(found.varying),
        numbers=frozenset(found.numbers),
        devices=found.devices,
        item_bytes=found.item_bytes,
    )


def is_tensor(node: torch.fx.Node) -> bool:
    """Whether the value of a node is one tensor."""
    return isinstance(node.meta.get("val"), torch.Tensor)


def is_number(node: torch.fx.Node) -> bool:
    """Whether a node's value is a Python or symbolic number."""
    return isinstance(node.meta.get("val"), NUMBERS)


def dims_of(tensor: torch.fx.Node) -> tuple[Size, ...]:
    """The sizes of the tensor that a node makes, ``[*]``; none for sparse tensors, whose shape no engine reads."""
    value = tensor.meta["val"]
    return sizes_of(value.shape) if value.layout == torch.strided else ()


def _live_nodes(program: Program, live: set[torch.fx.Node]) -> tuple[list[torch.fx.Node], list[list[torch.fx.Node]]]:
    """The nodes that ``live`` ones depend on and all placeholders, in graph order, with what each reads. Takes over ``live``."""
    nodes: list[torch.fx.Node] = []
    reads: list[list[torch.fx.Node]] = []
    for node in reversed(program.module.graph.nodes):
        if (node in live or node.op == "placeholder") and node.op != "output":
            others = node.all_input_nodes
            nodes.append(node)
            reads.append(others)
            live.update(others)
    nodes.reverse()
    reads.reverse()
    return nodes, reads


class _Reading:
    """The tables of a view, filled node by node in graph order; every node is looked at once."""

    def __init__(self, program: Program, nodes: Sequence[torch.fx.Node], reads: list[list[int]], effects: set[int]) -> None:
        count = len(nodes)
        self.reads = reads
        self.readers: list[list[int]] = [[] for _ in nodes]
        self.roles: list[Role] = []
        self.owners = [NOBODY] * count
        self.sizes: list[tuple[Size, ...] | None] = [None] * count
        self.devices: list[torch.device | None] = [None] * count
        self.item_bytes = [0] * count
        self.whole: list[int] = []
        self.varying: list[int] = []
        self.numbers: set[int] = set()
        self.several: list[int] = []
        self._program = program
        self._kinds = {item.name: item.kind for item in program.inputs}
        self._effects = effects
        # By id, since an operator's own hash is a call of Python; nodes keep their targets alive.
        self._sorts: dict[int, _Sort] = {}
        # Looking up a member of an enumeration costs more than all else that is done for a node.
        self._call, self._part, self._computes = Role.CALL, Role.PART, _Sort.CALL
        self._function, self._strided, self._tensor = "call_function", torch.strided, torch.Tensor

    def add(self, position: int, node: torch.fx.Node) -> None:
        """Reads the next node."""
        value = node.meta.get("val")
        if isinstance(value, self._tensor):
            dtype, shape = value.dtype, tuple(value.shape)
            self.item_bytes[position] = dtype.itemsize
            if value.layout == self._strided:
                sizes = self.sizes[position] = sizes_of(shape)
                if sizes is not shape and not all(isinstance(size, int) for size in sizes):
                    self.varying.append(position)
                if not dtype.is_complex:
                    self.devices[position] = value.device
            else:
                self.sizes[position] = ()
        elif isinstance(value, NUMBERS):
            self.numbers.add(position)
        for other in self.reads[position]:
            self.readers[other].append(position)
        role = self._role(position, node)
        self.roles.append(role)
        if role is self._call:
            self.owners[position] = position
            if isinstance(value, (tuple, list)):
                self.several.append(position)
        elif role is self._part:
            self.owners[position] = self.owners[self.reads[position][0]]

    def _role(self, position: int, node: torch.fx.Node) -> Role:
        if node.op != self._function:
            return self._role_of_source(node)
        target = node.target
        sort = self._sorts.get(id(target))
        if sort is None:
            sort = self._sorts[id(target)] = _sort_of(target)
        if sort is self._computes:
            return self._call
        if sort is _Sort.WHOLE:
            self.whole.append(position)
            return self._call
        if target is operator.getitem and self.roles[self.reads[position][0]] in (Role.CALL, Role.PART):
            return Role.PART
        if sort is _Sort.OTHER:
            return Role.SIZE if self._is_size(position) else Role.CALL
        if sort in (_Sort.SIZE, _Sort.CHECK):
            return Role.SIZE if sort is _Sort.SIZE else Role.CHECK
        cheap = position not in self._effects and self.sizes[position] is not None and self._is_cheap(position, sort)
        return Role.CHEAP if cheap else Role.CALL

    def _role_of_source(self, node: torch.fx.Node) -> Role:
        if node.op == "placeholder":
            if node.name not in self._kinds:
                raise InternalError(f"program: placeholder {node.name} is not among its inputs")
            return Role.WEIGHT if self._kinds[node.name] is InputKind.WEIGHT else Role.INPUT
        if node.op != "get_attr":
            raise InternalError(f"program: {node.name} has op {node.op}; expected call_function", where=source_of(node))
        if isinstance(attribute(self._program.module, str(node.target)), torch.Tensor):
            raise InternalError(f"program: {node.name} is a tensor attribute; expected a placeholder of kind WEIGHT", where=source_of(node))
        return Role.ATTRIBUTE

    def _is_size(self, position: int) -> bool:
        return position in self.numbers and all(self.sizes[other] is None for other in self.reads[position])

    def _is_cheap(self, position: int, sort: _Sort) -> bool:
        tensors = [other for other in self.reads[position] if self.roles[other] is not Role.SIZE and not self._is_number_input(other)]
        if not tensors:
            return sort is _Sort.MAKER
        return sort is _Sort.VIEW and len(tensors) == 1 and self.roles[tensors[0]] in (Role.WEIGHT, Role.CHEAP)

    def _is_number_input(self, position: int) -> bool:
        return self.roles[position] is Role.INPUT and self.sizes[position] is None


class _Sort(enum.Enum):
    """What an operator says of its calls, whatever their arguments."""

    SIZE = "reads a size"
    CHECK = "checks a number"
    MAKER = "makes a tensor from numbers"
    VIEW = "views a tensor"
    CALL = "computes"
    WHOLE = "runs graphs"
    OTHER = "is no operator of torch"


def _sort_of(target: Any) -> _Sort:
    if target in SIZE_READERS:
        return _Sort.SIZE
    if target in CHECKS:
        return _Sort.CHECK
    if isinstance(target, OpOverload):
        packet = target.overloadpacket
        return _Sort.MAKER if packet in _MAKERS else _Sort.VIEW if packet in VIEWS else _Sort.CALL
    return _Sort.WHOLE if isinstance(target, HigherOrderOperator) else _Sort.OTHER
