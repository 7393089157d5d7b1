"""From a model and example arguments to a ``Program`` and the way that callers reach it."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import linecache
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar
from unittest import mock

import torch
from torch._dynamo.convert_frame import compile_lock
from torch._dynamo.variables import builtin as dynamo_builtins
from torch._export.verifier import SpecViolationError
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind as ExportInputKind
from torch.export.graph_signature import OutputKind
from torch.fx.experimental import _config as symbolic_config

from torchkiln.asked import Asked, Traced, recorded
from torchkiln.convention import CallingConvention, read_convention
from torchkiln.examples import separate
from torchkiln.fake_memory import views_kept
from torchkiln.owners import owners_of, write_apart
from torchkiln.placeholders import rename_placeholders
from torchkiln.ranges import ranges_of
from torchkiln.size_guards import SizeGuard
from torchkiln.size_questions import export_asking_less
from torchkiln.small_branches import small_branch_guards
from torchkiln.small_examples import small_examples
from torchkiln.torchscript import export_script
from torchkiln.untouched import untouched
from torchkiln.weight_source import WeightSource
from torchkiln_core import ExportError, InputKind, KilnError, Program, ProgramInput

P = ParamSpec("P")
R = TypeVar("R")
_MODEL_FIX = (
    "see that the model runs on these arguments in PyTorch and that torch.export takes it, or use "
    "torch.compile(model, backend='torchkiln'), which allows graph breaks"
)
_SHAPES_FIX = "give dynamic_shapes an entry for each argument, with dimensions that it has and ranges that hold the example's sizes"


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured model.

    Attributes:
        program: The flat functional graph.
        convention: How arguments become flat inputs and flat results become what eager returns.
        read_weights: Reads the weights anew from the user's module, by placeholder name.
        read_state: Reads the live tensors of the mutated buffers, in the convention's order.
    """

    program: Program
    convention: CallingConvention
    read_weights: Callable[[], Mapping[str, torch.Tensor]]
    read_state: Callable[[], tuple[torch.Tensor, ...]]


def _alone(function: Callable[P, R]) -> Callable[P, R]:
    """Lets one thread trace at a time: torch keeps what it traces in variables of the process. ``torch.compile`` holds the same lock."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with compile_lock:
            return function(*args, **kwargs)

    return run


@dataclass(frozen=True, slots=True)
class Exported:
    """An exported model.

    Attributes:
        program: What torch exported.
        guards: What must hold of sizes of 0 and 1, since the model's own branches ask for them.
    """

    program: ExportedProgram
    guards: tuple[SizeGuard, ...] = ()


@_alone
def export_model(
    model: torch.nn.Module | Callable[..., Any] | ExportedProgram,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    dynamic_shapes: Any,
) -> Exported:
    """Exports a module, function or TorchScript module with ``torch.export``; passes an ``ExportedProgram`` through.

    Raises:
        ExportError: torch cannot export the model; its message is carried.
        TypeError: Not a model, arguments that it does not take, or shapes for an ``ExportedProgram``, which has its own.
    """
    if isinstance(model, ExportedProgram):
        if dynamic_shapes is not None:
            raise TypeError("dynamic_shapes: an ExportedProgram has its own; give them to torch.export.export")
        return Exported(model)
    if isinstance(model, type) or not callable(model):
        raise TypeError(f"model: expected a module, a function, an ExportedProgram or a TorchScript module, got {model!r}")
    _check_examples(model, args, kwargs, dynamic_shapes)
    args, kwargs = separate((args, dict(kwargs)), model)
    if isinstance(model, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        converted = export_script(model, args, kwargs)
        if dynamic_shapes is None:
            return Exported(converted)
        module: torch.nn.Module = converted.module()
    else:
        module = model if isinstance(model, torch.nn.Module) else _FunctionModule(model)
    traced = _export(module, args, kwargs, dynamic_shapes)
    if isinstance(module, _FunctionModule):
        _locate(traced.program.graph, module.function)

    def export_for(program: ExportedProgram, small: Mapping[str, int]) -> Traced:
        with untouched(module):
            return _export(module, *small_examples(program, args, kwargs, small))

    return Exported(traced.program, small_branch_guards(traced, export_for))


def _export(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic_shapes: Any) -> Traced:
    asked = Asked()

    def export(**options: Any) -> ExportedProgram:
        asked.forget()
        # While it traces, torch.export has other functions in the place of these, and dynamo, which interprets branches of torch.cond, then
        # takes max for min.
        extremes = mock.patch.multiple(dynamo_builtins, create=True, max=max, min=min)
        with torch.no_grad(), recorded(asked), extremes, views_kept():
            return torch.export.export(module, args, dict(kwargs), dynamic_shapes=dynamic_shapes, strict=False, **options)

    try:
        return Traced(export_asking_less(export), asked)
    except KilnError:
        raise
    except Exception as error:
        name = _name_of(module.function if isinstance(module, _FunctionModule) else module)
        fix = _MODEL_FIX if dynamic_shapes is None else f"{_SHAPES_FIX}; where that is so, {_MODEL_FIX}"
        raise ExportError(f"{name} cannot be exported: {type(error).__name__}: {error}", fix=fix) from error


def _check_examples(model: object, args: tuple[Any, ...], kwargs: Mapping[Any, Any], dynamic_shapes: Any) -> None:
    """Raises ``TypeError`` for what no call of the model takes, whatever it computes."""
    wrong = [name for name in kwargs if not isinstance(name, str)]
    if wrong:
        raise TypeError(f"kwargs: expected names of arguments, got {type(wrong[0]).__name__} {wrong[0]!r}")
    if not isinstance(dynamic_shapes, (type(None), Mapping, tuple, list)):
        got = f"{type(dynamic_shapes).__name__} {dynamic_shapes!r}"
        raise TypeError(f"dynamic_shapes: expected a tuple with an entry for each argument, or a mapping by their names, got {got}")
    signature = _signature_of(model)
    if signature is None:
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        names = ", ".join(kwargs) or "no names"
        bare = inspect.Signature([item.replace(annotation=item.empty) for item in signature.parameters.values()])
        raise TypeError(
            f"args, kwargs: expected what {_name_of(model)}{bare} takes, got {len(args)} positional arguments and {names}: {error}; give "
            "examples by args=(...) and kwargs={...}, or describe them by inputs=[torchkiln.Input(...), ...]"
        ) from None


@_alone
def capture(exported: Exported, model: object, sizes: Mapping[str, int] | None = None) -> Captured:
    """The program and calling convention of an exported model.

    Args:
        exported: Its weights are the live tensors of the user's module.
        model: What the user gave; weights are read from it when it is a module.
        sizes: Sizes that the default ranges of unbounded dimensions must hold, by symbol.

    Raises:
        ExportError: The graph takes or returns objects that are no tensors or plain values.
    """
    functional = _functional(exported.program, model)
    shown_names = rename_placeholders(functional)
    dims = ranges_of(functional.graph_module, functional.range_constraints, sizes)
    # A functional graph no longer says which of its results a model returns as the tensor that they are written to.
    writes = all(spec.kind is OutputKind.USER_OUTPUT for spec in exported.program.graph_signature.output_specs)
    owners = owners_of(exported.program.graph) if writes else None
    convention, module = read_convention(functional, _parameter_names(model), (shown_names, dims), owners)
    convention = dataclasses.replace(convention, guards=tuple(dict.fromkeys((*convention.guards, *exported.guards))))
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
    # Constants that the model makes get other names in the functional program.
    held = {**functional.constants, **exported.program.state_dict, **exported.program.constants}
    source = WeightSource(held, model, [*weight_targets.values(), *convention.mutated_buffers])

    def weights() -> dict[str, torch.Tensor]:
        return {name: source.read(target) for name, target in weight_targets.items()}

    program = Program(module, tuple(inputs), weights(), dims)
    return Captured(program, convention, weights, lambda: tuple(source.read(target) for target in convention.mutated_buffers))


def _functional(exported: ExportedProgram, model: object) -> ExportedProgram:
    try:
        try:
            return _decomposed(exported)
        except SpecViolationError:
            if exported is model:
                raise
            # torch mistakes two tensors that take one value for each other.
            write_apart(exported.graph_module)
            return _decomposed(exported)
    except Exception as error:
        raise ExportError(
            f"{_name_of(model)} cannot be traced into a functional graph: {type(error).__name__}: {error}",
            fix="use torch.compile(model, backend='torchkiln'), which allows graph breaks",
        ) from error


def _decomposed(exported: ExportedProgram) -> ExportedProgram:
    with torch.no_grad(), warnings.catch_warnings():
        # torch removes the write to a buffer twice where the buffer is a result too.
        warnings.filterwarnings("ignore", message=r"erase_node\(.*\) on an already erased node")
        # torch 2.11 copies the specs of leaves by their class, and then warns of that.
        warnings.filterwarnings("ignore", message=r"`isinstance\(treespec, LeafSpec\)` is deprecated", category=FutureWarning)
        # Whether a view has the sizes of its base is asked of examples, and would become a guard on two sizes that are independent.
        with symbolic_config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
            functional: ExportedProgram = exported.run_decompositions({})
    return functional


def _locate(graph: torch.fx.Graph, function: Callable[..., Any]) -> None:
    """Points calls that come from a function's own lines to its definition: export records frames of modules' ``forward`` only."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    for node in graph.nodes:
        *_, last = str(node.meta.get("stack_trace") or "").rpartition("File ")
        if last.startswith(f'"{__file__}"'):
            del node.meta["stack_trace"]
            if code is not None:
                line = linecache.getline(code.co_filename, code.co_firstlineno).strip()
                node.meta["stack_trace"] = f'File "{code.co_filename}", line {code.co_firstlineno}, in {code.co_name}\n    {line}'


class _FunctionModule(torch.nn.Module):
    """A plain function as a module; keeps its signature, by which export matches keyword arguments and dynamic shapes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

        def forward(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        if (signature := _signature(function)) is not None:
            forward.__signature__ = signature  # type: ignore[attr-defined]
        self.forward = forward


def _parameter_names(model: object) -> Sequence[str] | None:
    """Names of the positional-or-keyword parameters of the model's forward; ``None`` when it has none to read."""
    signature = _signature_of(model)
    if signature is None:
        return None
    return [parameter.name for parameter in signature.parameters.values() if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]


def _signature_of(model: object) -> inspect.Signature | None:
    """The signature of a model's forward in Python; ``None`` when it has none to read."""
    function = model.forward if isinstance(model, torch.nn.Module) else model
    if isinstance(model, (ExportedProgram, torch.jit.ScriptModule)) or not callable(function):
        return None
    return _signature(function)


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """``None`` for a builtin such as ``torch.relu``, which has none."""
    try:
        return inspect.signature(function)
    except ValueError:
        return None


def _name_of(model: object) -> str:
    return str(getattr(model, "original_name", None) or getattr(model, "__name__", None) or type(model).__name__)
