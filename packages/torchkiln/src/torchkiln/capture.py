"""From a model and example arguments to a ``Program`` and the way that callers reach it."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind as ExportInputKind

from torchkiln.convention import CallingConvention, read_convention
from torchkiln.placeholders import rename_placeholders
from torchkiln.ranges import ranges_of
from torchkiln_core import ExportError, InputKind, Program, ProgramInput

WeightSource = Callable[[], Mapping[str, torch.Tensor]]
"""Reads the live weights by placeholder name."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured model.

    Attributes:
        program: The flat functional graph.
        convention: How arguments become flat inputs and flat results become what eager returns.
        read_weights: Reads the weights anew from the user's module.
        read_state: Reads the live tensors of the mutated buffers, in the convention's order.
    """

    program: Program
    convention: CallingConvention
    read_weights: WeightSource
    read_state: Callable[[], tuple[torch.Tensor, ...]]


def export_model(
    model: torch.nn.Module | Callable[..., Any] | ExportedProgram,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    dynamic_shapes: Any,
) -> ExportedProgram:
    """Exports a module, function or TorchScript module with ``torch.export``; passes an ``ExportedProgram`` through.

    Raises:
        ExportError: torch cannot export the model; its message is carried.
    """
    if isinstance(model, ExportedProgram):
        return model
    if isinstance(model, torch.jit.ScriptModule):
        return _export_script(model, args, kwargs)
    module = model if isinstance(model, torch.nn.Module) else _FunctionModule(model)
    try:
        with torch.no_grad():
            return torch.export.export(module, args, dict(kwargs), dynamic_shapes=dynamic_shapes, strict=False)
    except Exception as error:
        raise ExportError(
            f"{_name_of(model)} cannot be exported: {type(error).__name__}: {error}",
            fix="make the model exportable with torch.export, or use torch.compile(model, backend='torchkiln'), which allows graph breaks",
        ) from error


def capture(exported: ExportedProgram, model: object) -> Captured:
    """The program and calling convention of an exported model.

    Args:
        exported: Its weights are the live tensors of the user's module.
        model: What the user gave; weights are read from it when it is a module.

    Raises:
        ExportError: The graph takes or returns objects that are no tensors or plain values.
    """
    with torch.no_grad():
        functional = exported.run_decompositions({})
    shown_names = rename_placeholders(functional)
    convention, module = read_convention(functional, _parameter_names(model), shown_names)
    mutated = set(convention.mutated_buffers)
    inputs: list[ProgramInput] = []
    weight_targets: dict[str, str] = {}
    for spec in functional.graph_signature.input_specs:
        name = str(getattr(spec.arg, "name", ""))
        match spec.kind:
            case ExportInputKind.USER_INPUT:
                if name in convention.flat_inputs:
                    inputs.append(ProgramInput(name, InputKind.USER))
            case ExportInputKind.PARAMETER | ExportInputKind.BUFFER | ExportInputKind.CONSTANT_TENSOR:
                target = str(spec.target)
                if target in mutated:
                    inputs.append(ProgramInput(name, InputKind.USER, target))
                else:
                    inputs.append(ProgramInput(name, InputKind.WEIGHT, target))
                    weight_targets[name] = target
            case _:
                raise ExportError(f"input {name or spec.target}: expected a tensor, got {spec.kind.name.lower()}")
    reader = _WeightReader(exported, model, weight_targets)
    program = Program(module, tuple(inputs), reader.weights(), ranges_of(module, functional.range_constraints))
    return Captured(program, convention, reader.weights, lambda: tuple(reader.read(target) for target in convention.mutated_buffers))


class _FunctionModule(torch.nn.Module):
    """A plain function as a module; keeps its signature for keyword arguments."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function
        self.__signature__ = inspect.signature(function)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


class _WeightReader:
    """Finds tensors by qualified name in the user's module while it lives, else in the exported program."""

    def __init__(self, exported: ExportedProgram, model: object, targets: Mapping[str, str]) -> None:
        self._module = weakref.ref(model) if isinstance(model, torch.nn.Module) else lambda: None
        self._tensors: dict[str, Any] = {**exported.state_dict, **exported.constants}
        self._targets = targets

    def read(self, target: str) -> torch.Tensor:
        module = self._module()
        if module is not None:
            owner_name, _, attribute = target.rpartition(".")
            try:
                found = getattr(module.get_submodule(owner_name), attribute)
            except AttributeError:
                found = None
            if isinstance(found, torch.Tensor):
                return found
        tensor = self._tensors[target]
        if not isinstance(tensor, torch.Tensor):
            raise ExportError(f"constant {target}: expected a tensor, got {type(tensor).__name__}")
        return tensor

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: self.read(target) for name, target in self._targets.items()}


def _parameter_names(model: object) -> Sequence[str] | None:
    """Names of the positional-or-keyword parameters of the model's forward; ``None`` when it has none to read."""
    function = model.forward if isinstance(model, torch.nn.Module) else model
    if isinstance(model, (ExportedProgram, torch.jit.ScriptModule)) or not callable(function):
        return None
    parameters = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]


def _export_script(model: torch.jit.ScriptModule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ExportedProgram:
    try:
        from torch._export.converter import TS2EPConverter

        return TS2EPConverter(model, args, dict(kwargs)).convert()
    except Exception as error:
        raise ExportError(
            f"TorchScript module {model.original_name} cannot be converted: {type(error).__name__}: {error}",
            fix="give the nn.Module that the TorchScript module was made from",
        ) from error


def _name_of(model: object) -> str:
    return getattr(model, "__name__", None) or type(model).__name__
