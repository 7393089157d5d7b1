"""``ProgramView``: the live nodes of a program and what each is to the division, before anyone asks where it runs."""

from __future__ import annotations

import enum
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.fx
from torch._ops import HigherOrderOperator, OpOverload

from torchkiln_core.call import decided_by_data, source_of
from torchkiln_core.errors import InternalError
from torchkiln_core.program import InputKind, Program
from torchkiln_core.size import Size, sizes_of
from torchkiln_partitioning.effects import Effect, EffectFinder

aten = torch.ops.aten

SIZE_READERS = frozenset({aten.sym_size.int, aten.sym_stride.int, aten.sym_numel.default, aten.sym_storage_offset.default})
"""Operators that read a number of a tensor's shape, not of its elements."""
CHECKS = frozenset({aten._assert_scalar.default, aten.sym_constrain_range.default, aten.sym_constrain_range_for_size.default})
_MAKERS = frozenset({aten.full, aten.zeros, aten.ones, aten.arange, aten.scalar_tensor, aten.eye})
VIEWS = frozenset(
    {
        aten.alias, aten.detach, aten.expand, aten.permute, aten.reshape, aten.select, aten.slice, aten.squeeze, aten.t, aten.transpose,
        aten.unsqueeze, aten.view, aten._unsafe_view,
    }
)  # fmt: skip
_NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
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
        unproven: Those of them that checks are made of and whose metadata may say no more than what is checked.
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
    unproven: frozenset[int]
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
    live = _live_nodes(program, set(output.all_input_nodes))
    nodes, effects = live.nodes, live.effects
    index = dict(zip(nodes, range(len(nodes)), strict=True))
    found = _Reading(program, live, index)
    found.read_values()
    found.read_roles()
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
        unproven=frozenset(index[node] for node in decided_by_data(program.module.graph) if node in index) & found.numbers,
        devices=found.devices,
        item_bytes=found.item_bytes,
    )


def is_tensor(node: torch.fx.Node) -> bool:
    """Whether the value of a node is one tensor."""
    return isinstance(node.meta.get("val"), torch.Tensor)


def dims_of(tensor: torch.fx.Node) -> tuple[Size, ...]:
    """The sizes of the tensor that a node makes, ``[*]``; none for sparse tensors, whose shape no engine reads."""
    value = tensor.meta["val"]
    return sizes_of(value.shape) if value.layout == torch.strided else ()


class _LiveNodes(NamedTuple):
    """Nodes in graph order with what each has. A large graph lies all over the memory, so each node is visited once for all of it."""

    nodes: list[torch.fx.Node]
    reads: list[list[torch.fx.Node]]
    values: list[Any]
    targets: list[Any]
    effects: dict[torch.fx.Node, Effect]


def _live_nodes(program: Program, live: set[torch.fx.Node]) -> _LiveNodes:
    """The placeholders, and all that a call with an effect or a node of ``live`` depends on; takes over ``live``."""
    found = _LiveNodes([], [], [], [], {})
    nodes, reads, values, targets, effects = found
    effect_of = EffectFinder(program.module).effect_of
    for node in reversed(program.module.graph.nodes):
        effect = effect_of(node)
        if effect is not None:
            effects[node] = effect
        elif node not in live and node.op != "placeholder":
            continue
        others = node.all_input_nodes
        nodes.append(node)
        reads.append(others)
        values.append(node.meta.get("val"))
        targets.append(node.target)
        live.update(others)
    for column in (nodes, reads, values, targets):
        column.reverse()
    return found


class _Reading:
    """The tables of a view."""

    def __init__(self, program: Program, live: _LiveNodes, index: Mapping[torch.fx.Node, int]) -> None:
        count = len(live.nodes)
        self.reads = [[index[other] for other in others] for others in live.reads]
        self.readers: list[list[int]] = [[] for _ in live.nodes]
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
        self._live = live
        self._kinds = {item.name: item.kind for item in program.inputs}
        self._effects = {index[node] for node in live.effects}

    def read_values(self) -> None:
        """What each node's value is."""
        tensor, strided, integers = torch.Tensor, torch.strided, {int}
        all_sizes, devices, item_bytes = self.sizes, self.devices, self.item_bytes
        for position, value in enumerate(self._live.values):
            if not isinstance(value, tensor):
                self._note_other(position, value)
                continue
            dtype, shape = value.dtype, tuple(value.shape)
            item_bytes[position] = dtype.itemsize
            if value.layout != strided:
                all_sizes[position] = ()
                continue
            if not integers.issuperset(map(type, shape)):
                shape = sizes_of(shape)
                if not integers.issuperset(map(type, shape)):
                    self.varying.append(position)
            all_sizes[position] = shape
            if not dtype.is_complex:
                devices[position] = value.device

    def _note_other(self, position: int, value: object) -> None:
        if isinstance(value, _NUMBERS):
            self.numbers.add(position)
        elif isinstance(value, (tuple, list)):
            self.several.append(position)

    def read_roles(self) -> None:
        """What each node is, and who reads it."""
        # Looking up a member of an enumeration costs more than all else that is done for most nodes.
        call, part, computes = Role.CALL, Role.PART, _Sort.CALL
        # By id, since an operator's own hash is a call of Python; nodes keep their targets alive.
        sorts: dict[int, _Sort] = {}
        readers, owners, reads, append = self.readers, self.owners, self.reads, self.roles.append
        for position, target in enumerate(self._live.targets):
            for other in reads[position]:
                readers[other].append(position)
            sort = sorts.get(id(target))
            if sort is None and self._live.nodes[position].op == "call_function":
                sort = sorts[id(target)] = _sort_of(target)
            role = call if sort is computes else self._role(position, sort)
            append(role)
            if role is call:
                owners[position] = position
            elif role is part:
                owners[position] = owners[reads[position][0]]
        self.several = [position for position in self.several if self.roles[position] is call]

    def _role(self, position: int, sort: _Sort | None) -> Role:
        """The role of what is no call of an operator that just computes."""
        if sort is None:
            return self._role_of_source(self._live.nodes[position])
        if sort is _Sort.WHOLE:
            self.whole.append(position)
            return Role.CALL
        if sort is _Sort.OTHER:
            if self._live.targets[position] is operator.getitem and self.roles[self.reads[position][0]] in (Role.CALL, Role.PART):
                return Role.PART
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
        if isinstance(operator.attrgetter(str(node.target))(self._program.module), torch.Tensor):
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
