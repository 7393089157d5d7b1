"""``ProgramView``: the live nodes of a program and what each is to the division, before anyone asks where it runs."""

from __future__ import annotations

import enum
import functools
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
from torchkiln_partitioning.effects import Effect, attribute, effect_of

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
    """A program seen by the partitioner.

    Attributes:
        program: The program.
        nodes: Live nodes in graph order, without the output node.
        index: Position of each live node.
        roles: Role of each live node.
        owners: The call that a value comes from, for ``CALL`` and ``PART`` nodes.
        effects: Calls that do more than compute their result.
        results: What the program returns.
        whole: Calls that have a segment of their own: higher-order calls run graphs that no neighbour may be fused with.
        sizes: The shape ``[*]`` of each live node that is one tensor; empty for sparse ones, whose shape no engine reads.
        devices: The device of each live node that is one dense real tensor.
    """

    program: Program
    nodes: tuple[torch.fx.Node, ...]
    index: Mapping[torch.fx.Node, int]
    roles: Mapping[torch.fx.Node, Role]
    owners: Mapping[torch.fx.Node, torch.fx.Node]
    effects: Mapping[torch.fx.Node, Effect]
    results: tuple[Any, ...]
    whole: frozenset[torch.fx.Node]
    sizes: Mapping[torch.fx.Node, tuple[Size, ...]]
    devices: Mapping[torch.fx.Node, torch.device]

    def operators(self) -> Iterator[torch.fx.Node]:
        """The operators of the program as users see them, in order: no parts, no sizes."""
        return (node for node in self.nodes if self.roles[node] in (Role.CALL, Role.CHEAP))


def view_program(program: Program) -> ProgramView:
    """Finds the live nodes of a program and their roles.

    Raises:
        InternalError: The graph breaks a promise of ``Program``.
    """
    graph = program.module.graph
    output = next(iter(graph.find_nodes(op="output")))
    results = output.args[0]
    if not isinstance(results, (tuple, list)):
        raise InternalError(f"program: expected the output to be a flat tuple, got {results!r}")
    effects = {node: effect for node in graph.nodes if (effect := effect_of(node, program.module)) is not None}
    nodes = _live_nodes(program, set(output.all_input_nodes) | effects.keys())
    kinds = {item.name: item.kind for item in program.inputs}
    roles: dict[torch.fx.Node, Role] = {}
    owners: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in nodes:
        role = roles[node] = _role(node, program, kinds, (roles, effects))
        if role is Role.CALL:
            owners[node] = node
        elif role is Role.PART:
            owners[node] = owners[node.all_input_nodes[0]]
    for node in nodes:
        if roles[node] is Role.CALL and isinstance(node.meta.get("val"), (tuple, list)):
            readers = [user.name for user in node.users if user.op == "output" or roles.get(user, Role.PART) is not Role.PART]
            if readers:
                raise InternalError(f"program: {', '.join(readers)} reads all results of {node.name} at once", where=source_of(node))
    index = {node: position for position, node in enumerate(nodes)}
    whole = frozenset(node for node in nodes if type(node.target) is not OpOverload and isinstance(node.target, HigherOrderOperator))
    return ProgramView(program, nodes, index, roles, owners, effects, tuple(results), whole, *_tensors_of(nodes))


def _tensors_of(nodes: Sequence[torch.fx.Node]) -> tuple[dict[torch.fx.Node, tuple[Size, ...]], dict[torch.fx.Node, torch.device]]:
    """``sizes`` and ``devices`` of a view."""
    sizes: dict[torch.fx.Node, tuple[Size, ...]] = {}
    devices: dict[torch.fx.Node, torch.device] = {}
    for node in nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            dense = value.layout == torch.strided
            sizes[node] = sizes_of(value.shape) if dense else ()
            if dense and not value.dtype.is_complex:
                devices[node] = value.device
    return sizes, devices


def is_tensor(node: torch.fx.Node) -> bool:
    """Whether the value of a node is one tensor."""
    return isinstance(node.meta.get("val"), torch.Tensor)


def dims_of(tensor: torch.fx.Node) -> tuple[Size, ...]:
    """The sizes of the tensor that a node makes, ``[*]``; none for sparse tensors, whose shape no engine reads."""
    value = tensor.meta["val"]
    return sizes_of(value.shape) if value.layout == torch.strided else ()


def _live_nodes(program: Program, roots: set[torch.fx.Node]) -> tuple[torch.fx.Node, ...]:
    live = set(roots)
    kept: list[torch.fx.Node] = []
    for node in reversed(program.module.graph.nodes):
        if node.op == "placeholder" or node in live:
            if node.op != "output":
                kept.append(node)
            live.update(node.all_input_nodes)
    return tuple(reversed(kept))


def _role(
    node: torch.fx.Node,
    program: Program,
    kinds: Mapping[str, InputKind],
    known: tuple[Mapping[torch.fx.Node, Role], Mapping[torch.fx.Node, Effect]],
) -> Role:
    roles, effects = known
    if node.op == "placeholder":
        if node.name not in kinds:
            raise InternalError(f"program: placeholder {node.name} is not among its inputs")
        return Role.WEIGHT if kinds[node.name] is InputKind.WEIGHT else Role.INPUT
    if node.op == "get_attr":
        if isinstance(attribute(program.module, str(node.target)), torch.Tensor):
            raise InternalError(f"program: {node.name} is a tensor attribute; expected a placeholder of kind WEIGHT", where=source_of(node))
        return Role.ATTRIBUTE
    if node.op != "call_function":
        raise InternalError(f"program: {node.name} has op {node.op}; expected call_function", where=source_of(node))
    target = node.target
    if target is operator.getitem and roles[node.all_input_nodes[0]] in (Role.CALL, Role.PART):
        return Role.PART
    sort = _sort_of(target)
    if sort is _Sort.OTHER and _is_size(node):
        return Role.SIZE
    if sort in (_Sort.SIZE, _Sort.CHECK):
        return Role.SIZE if sort is _Sort.SIZE else Role.CHECK
    cheap = sort in (_Sort.MAKER, _Sort.VIEW) and node not in effects and is_tensor(node) and _is_cheap(node, sort, roles)
    return Role.CHEAP if cheap else Role.CALL


class _Sort(enum.Enum):
    """What an operator says of its calls, whatever their arguments."""

    SIZE = "reads a size"
    CHECK = "checks a number"
    MAKER = "makes a tensor from numbers"
    VIEW = "views a tensor"
    CALL = "computes"
    OTHER = "is no operator of torch"


@functools.lru_cache(maxsize=4096)
def _sort_of(target: Any) -> _Sort:
    if target in SIZE_READERS:
        return _Sort.SIZE
    if target in CHECKS:
        return _Sort.CHECK
    if isinstance(target, OpOverload):
        packet = target.overloadpacket
        return _Sort.MAKER if packet in _MAKERS else _Sort.VIEW if packet in VIEWS else _Sort.CALL
    return _Sort.CALL if isinstance(target, HigherOrderOperator) else _Sort.OTHER


def _is_size(node: torch.fx.Node) -> bool:
    numbers = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
    return isinstance(node.meta.get("val"), numbers) and not any(is_tensor(other) for other in node.all_input_nodes)


def _is_cheap(node: torch.fx.Node, sort: _Sort, roles: Mapping[torch.fx.Node, Role]) -> bool:
    tensors = [other for other in node.all_input_nodes if roles[other] is not Role.SIZE and not _is_number_input(other, roles)]
    if not tensors:
        return sort is _Sort.MAKER
    return sort is _Sort.VIEW and len(tensors) == 1 and roles[tensors[0]] in (Role.WEIGHT, Role.CHEAP)


def _is_number_input(node: torch.fx.Node, roles: Mapping[torch.fx.Node, Role]) -> bool:
    return roles[node] is Role.INPUT and not is_tensor(node)
