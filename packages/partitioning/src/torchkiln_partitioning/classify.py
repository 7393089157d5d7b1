"""Which calls may run in an engine, with a rejection for each that may not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.fx

from torchkiln_core.call import OpCall
from torchkiln_core.operators import OperatorSet
from torchkiln_core.rejection import Rejection, SupportOracle
from torchkiln_partitioning.effects import Effect
from torchkiln_partitioning.levels import Kind
from torchkiln_partitioning.sizes import SizeRecipes
from torchkiln_partitioning.view import ProgramView, Role


@dataclass(frozen=True, slots=True)
class Refusals:
    """What is refused before any converter is asked.

    Attributes:
        executed: Operators that the user keeps in PyTorch.
        in_modules: Calls of modules that the user keeps there, each with the name of the module.
        earlier: Rejections of earlier failed builds by node name.
        overridden: Where the user wants single calls.
    """

    executed: OperatorSet
    in_modules: Mapping[torch.fx.Node, str]
    earlier: Mapping[str, Rejection]
    overridden: Mapping[int, Kind]


def classify(view: ProgramView, recipes: SizeRecipes, oracle: SupportOracle, refusals: Refusals) -> dict[int, Rejection]:
    """Why calls stay in PyTorch, by position in graph order; every other call may run in an engine."""
    steered = bool(refusals.in_modules or refusals.executed or refusals.overridden or refusals.earlier)
    by_tensors = _TensorRefusals(view)
    result = by_tensors.result
    nodes, reads, effects, plain, from_node = view.nodes, view.reads, view.effects, by_tensors.plain, OpCall.from_node
    for position in view.operators():
        node = nodes[position]
        simple = plain[position]
        if simple:
            for other in reads[position]:
                if not plain[other]:
                    simple = False
                    break
        found = (
            (_by_user(position, view, refusals) if steered else None)
            or (_by_effect(node, effects[position]) if position in effects else None)
            or (None if simple else by_tensors.of(position))
            or oracle.reject(from_node(node))
            or (None if simple else _by_numbers(position, view, recipes))
        )
        if found is not None:
            result[position] = found
    return result


def _by_user(position: int, view: ProgramView, refusals: Refusals) -> Rejection | None:
    """What the user keeps in PyTorch, and what could not be built before."""
    node = view.nodes[position]
    if node.target in refusals.executed:
        return Rejection.of_node(node, "torch-executed-op", "torch_executed_ops keeps the operator in PyTorch")
    if node in refusals.in_modules:
        return Rejection.of_node(node, "torch-executed-module", f"torch_executed_modules keeps {refusals.in_modules[node]} in PyTorch")
    if refusals.overridden.get(position) is Kind.TORCH:
        return Rejection.of_node(node, "node-override", "node_overrides keeps the call in PyTorch")
    # A segment that failed has calls besides its copies of cheap ones, whose other copies may well build.
    return refusals.earlier.get(node.name) if view.roles[position] is Role.CALL else None


def _by_effect(node: torch.fx.Node, effect: Effect) -> Rejection:
    return Rejection.of_node(node, "effect", f"expected a call that only computes its result, got one that {effect.value}")


class _TensorRefusals:
    """Checks what every tensor at an engine must be: on the one device of the program's engines, dense, and real.

    Attributes:
        result: Calls that were refused so far; their results are no constants that an engine holds.
        plain: Whether a node is one tensor that nothing can be objected to.
    """

    def __init__(self, view: ProgramView) -> None:
        self.result: dict[int, Rejection] = {}
        self._view = view
        self._home = home = _home_device(view)
        self.plain = [device is not None and device == home for device in view.devices]

    def of(self, position: int) -> Rejection | None:
        view, home = self._view, self._home
        node = view.nodes[position]
        values = [*view.reads[position], position]
        tensors = [tensor for value in values for tensor in _tensors(view.nodes[value])]
        devices = sorted({str(tensor.device) for value in values if not self._embedded(value) for tensor in _tensors(view.nodes[value])})
        if len(devices) > 1:
            return Rejection.of_node(node, "device", f"expected tensors on one device, got {', '.join(devices)}")
        if devices and devices != [str(home)]:
            return Rejection.of_node(node, "device", f"expected tensors on {home}, where the program's engines run, got {devices[0]}")
        for tensor in tensors:
            if tensor.layout != torch.strided:
                return Rejection.of_node(node, "layout", f"expected dense tensors, got {tensor.layout}")
            if tensor.is_complex():
                return Rejection.of_node(node, "complex", f"expected real tensors, got {tensor.dtype}")
        return None

    def _embedded(self, position: int) -> bool:
        """Whether an engine holds a scalar itself, so that it does not matter that it lives on the CPU."""
        role = self._view.roles[position]
        if not (role is Role.WEIGHT or (role is Role.CHEAP and position not in self.result)) or self._view.sizes[position] is None:
            return False
        value = self._view.nodes[position].meta["val"]
        return bool(value.dim() == 0 and value.device.type == "cpu")


def _tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    items = value if isinstance(value, (tuple, list)) else (value,)
    return [item for item in items if isinstance(item, torch.Tensor)]


def _by_numbers(position: int, view: ProgramView, recipes: SizeRecipes) -> Rejection | None:
    """Engines take and return tensors only: numbers must be readable from shapes, and results must be tensors."""
    node = view.nodes[position]
    parts = [user for user in view.readers[position] if view.roles[user] is Role.PART]
    for result in parts if isinstance(node.meta["val"], (tuple, list)) else [position]:
        if view.sizes[result] is None:
            value = view.nodes[result].meta["val"]
            return Rejection.of_node(node, "symint", f"expected tensors as results, got {type(value).__name__} {value}")
    for other in view.reads[position]:
        if view.roles[other] is Role.ATTRIBUTE or view.sizes[other] is not None:
            continue
        if not recipes.usable_by(other, position):
            value = view.nodes[other].meta.get("val")
            got = f"{view.nodes[other].name} ({type(value).__name__} {value})"
            return Rejection.of_node(node, "symint", f"expected a number that the shape of an earlier tensor holds, got {got}")
    return None


def _home_device(view: ProgramView) -> torch.device | None:
    """The device of the program's engines: the first accelerator that a tensor lives on, else the CPU."""
    found: dict[torch.device, None] = {}
    last: torch.device | None = None
    for position, device in enumerate(view.devices):
        if device is None:
            found.update((tensor.device, None) for tensor in _tensors(view.nodes[position]))
        elif device is not last:
            found[device] = None
            last = device
    return next((device for device in found if device.type not in ("cpu", "meta")), next(iter(found), None))
