"""Which calls may run in an engine, with a rejection for each that may not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.fx

from torchkiln_core.call import OpCall, source_of
from torchkiln_core.options import PartitionOptions
from torchkiln_core.rejection import Rejection, SupportOracle, target_name
from torchkiln_partitioning.executed_modules import find_executed
from torchkiln_partitioning.executed_ops import ExecutedOps
from torchkiln_partitioning.levels import Kind
from torchkiln_partitioning.sizes import SizeRecipes
from torchkiln_partitioning.view import ProgramView, Role, is_tensor


@dataclass(frozen=True, slots=True)
class Refusals:
    """What is refused before any converter is asked.

    Attributes:
        executed: Operators that the user keeps in PyTorch.
        options: Options of the stage.
        earlier: Rejections of earlier failed builds by node name.
        overridden: Where the user wants single calls.
    """

    executed: ExecutedOps
    options: PartitionOptions
    earlier: Mapping[str, Rejection]
    overridden: Mapping[torch.fx.Node, Kind]


def reject(node: torch.fx.Node, rule: str, message: str) -> Rejection:
    """A rejection of a node, also of one that an ``OpCall`` cannot describe."""
    target = target_name(node.target) if callable(node.target) else str(node.target)
    return Rejection(target, node.name, rule, message, source_of(node))


def classify(view: ProgramView, recipes: SizeRecipes, oracle: SupportOracle, refusals: Refusals) -> dict[torch.fx.Node, Rejection]:
    """Why calls stay in PyTorch, in graph order; every other call may run in an engine.

    Raises:
        ValueError: An entry of ``torch_executed_modules`` matches nothing.
    """
    operators = tuple(view.operators())
    in_modules = find_executed(operators, refusals.options.torch_executed_modules)
    steered = bool(in_modules or refusals.executed or refusals.overridden)
    home = _home_device(view.nodes)
    # One dense real tensor on the home device: nothing that `_by_tensors` could object to.
    plain = {node for node, device in view.devices.items() if device == home}
    result: dict[torch.fx.Node, Rejection] = {}

    def embedded(value: torch.fx.Node) -> bool:
        """Whether an engine holds a scalar itself, so that it does not matter that it lives on the CPU."""
        held = view.roles[value] is Role.WEIGHT or (view.roles[value] is Role.CHEAP and value not in result)
        return held and is_tensor(value) and value.meta["val"].dim() == 0 and value.meta["val"].device.type == "cpu"

    for node in operators:
        reads = node.all_input_nodes
        simple = node in plain and plain.issuperset(reads)
        found = (
            (_by_user(node, refusals, in_modules) if steered else None)
            or (_by_failure(node, view, refusals) if refusals.earlier else None)
            or (_by_effect(node, view) if node in view.effects else None)
            or (None if simple else _by_tensors(node, home, embedded))
            or oracle.reject(OpCall.from_node(node))
            or (None if simple else _by_numbers(node, view, recipes))
        )
        if found is not None:
            result[node] = found
    return result


def _by_user(node: torch.fx.Node, refusals: Refusals, in_modules: Mapping[torch.fx.Node, str]) -> Rejection | None:
    if node.target in refusals.executed:
        return reject(node, "torch-executed-op", "torch_executed_ops keeps the operator in PyTorch")
    if node in in_modules:
        return reject(node, "torch-executed-module", f"torch_executed_modules keeps {in_modules[node]} in PyTorch")
    if refusals.overridden.get(node) is Kind.TORCH:
        return reject(node, "node-override", "node_overrides keeps the call in PyTorch")
    return None


def _by_failure(node: torch.fx.Node, view: ProgramView, refusals: Refusals) -> Rejection | None:
    # A segment that failed has calls besides its copies of cheap ones, whose other copies may well build.
    return refusals.earlier.get(node.name) if view.roles[node] is Role.CALL else None


def _by_effect(node: torch.fx.Node, view: ProgramView) -> Rejection | None:
    effect = view.effects.get(node)
    return None if effect is None else reject(node, "effect", f"expected a call that only computes its result, got one that {effect.value}")


def _tensors(values: Iterable[object]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in values:
        items = value if isinstance(value, (tuple, list)) else (value,)
        found.extend(item for item in items if isinstance(item, torch.Tensor))
    return found


def _by_tensors(node: torch.fx.Node, home: torch.device | None, embedded: Callable[[torch.fx.Node], bool]) -> Rejection | None:
    """Checks what every tensor at an engine must be: on the one device of the program's engines, dense, and real."""
    values = (*node.all_input_nodes, node)
    tensors = _tensors(value.meta.get("val") for value in values)
    devices = sorted({str(tensor.device) for tensor in _tensors(value.meta.get("val") for value in values if not embedded(value))})
    if len(devices) > 1:
        return reject(node, "device", f"expected tensors on one device, got {', '.join(devices)}")
    if devices and devices != [str(home)]:
        return reject(node, "device", f"expected tensors on {home}, where the program's engines run, got {devices[0]}")
    for tensor in tensors:
        if tensor.layout != torch.strided:
            return reject(node, "layout", f"expected dense tensors, got {tensor.layout}")
        if tensor.is_complex():
            return reject(node, "complex", f"expected real tensors, got {tensor.dtype}")
    return None


def _by_numbers(node: torch.fx.Node, view: ProgramView, recipes: SizeRecipes) -> Rejection | None:
    """Engines take and return tensors only: numbers must be readable from shapes, and results must be tensors."""
    parts = [user for user in node.users if view.roles.get(user) is Role.PART]
    for result in parts if isinstance(node.meta["val"], (tuple, list)) else [node]:
        if not is_tensor(result):
            return reject(node, "symint", f"expected tensors as results, got {type(result.meta['val']).__name__} {result.meta['val']}")
    for other in node.all_input_nodes:
        if view.roles[other] is Role.ATTRIBUTE or is_tensor(other):
            continue
        if not recipes.usable_by(other, view.index[node]):
            value = other.meta.get("val")
            got = f"{other.name} ({type(value).__name__} {value})"
            return reject(node, "symint", f"expected a number that the shape of an earlier tensor holds, got {got}")
    return None


def _home_device(nodes: Iterable[torch.fx.Node]) -> torch.device | None:
    """The device of the program's engines: the first accelerator that a tensor lives on, else the CPU."""
    found: dict[torch.device, None] = {}
    for node in nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            found[value.device] = None
        elif isinstance(value, (tuple, list)):
            found.update((tensor.device, None) for tensor in _tensors(value))
    return next((device for device in found if device.type not in ("cpu", "meta")), next(iter(found), None))
