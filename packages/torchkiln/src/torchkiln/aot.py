"""``torchkiln.compile``: ahead of time, from a model and example arguments to one callable."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.dynamic_shapes import AdditionalInputs, ShapesCollection

from torchkiln.capture import Captured, Exported, capture, export_model
from torchkiln.compiled_module import CompiledModule
from torchkiln.inputs import Input, examples_of
from torchkiln.out_of_profile import InPyTorch, Rebuild
from torchkiln.profiles import SymbolRanges, check_names, hull, names_of_checks, names_of_dims, resolve
from torchkiln.stages import Compiler
from torchkiln.widening import sizes_in, widened_shapes
from torchkiln_core import ExportError, Options, Profile


def compile(
    model: torch.nn.Module | Callable[..., Any] | ExportedProgram,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    inputs: Sequence[Input | torch.Tensor] | None = None,
    **options: Any,
) -> CompiledModule:
    """Compiles a model ahead of time.

    Args:
        model: A module, a function, an ``ExportedProgram`` or a TorchScript module. Its parameters and buffers become weights of the
            engines.
        args: Example positional arguments.
        kwargs: Example keyword arguments.
        dynamic_shapes: As in ``torch.export.export``. A dimension without a maximum may grow to eight times its example size.
        inputs: Instead of ``args`` and ``dynamic_shapes``: a description of each tensor argument.
        **options: The fields of ``LoweringOptions``, ``PartitionOptions``, ``BuildOptions``, ``RuntimeOptions``,
            ``DiagnosticOptions`` and ``ExtensionOptions``.

    Raises:
        CompileError: A stage refused; the subclass says which.
        ValueError: An unknown option, or a value outside its range.
        TypeError: Arguments of the wrong type.
    """
    settings = Options.from_keywords(options)
    compiler = Compiler(settings)
    captured, profiles = capture_model(compiler, model, (args, kwargs, dynamic_shapes, inputs))
    return _finish(compiler, model, captured, settings, profiles)


def _with_profiles(
    captured: Captured, model: Any, dynamic_shapes: Any, given: Sequence[Profile]
) -> tuple[Captured, tuple[SymbolRanges, ...]]:
    """The model for the sizes of its profiles, and the profiles in its symbols."""
    convention = captured.convention
    names = names_of_checks(convention.checks)
    if dynamic_shapes is not None:
        names |= names_of_dims(model, convention, dynamic_shapes)
    check_names(given, names)
    profiles = resolve(given, captured.program.dims, names)
    dims = hull(captured.program.dims, profiles)
    checks = tuple(dataclasses.replace(check, dims={symbol: dims[symbol] for symbol in check.dims}) for check in convention.checks)
    program = dataclasses.replace(captured.program, dims=dims)
    return dataclasses.replace(captured, program=program, convention=dataclasses.replace(convention, checks=checks)), profiles


def _finish(compiler: Compiler, model: Any, captured: Captured, settings: Options, profiles: Sequence[SymbolRanges] = ()) -> CompiledModule:
    """The stages behind the capture."""
    program = compiler.build(compiler.lower(captured.program), profiles)
    if settings.runtime.on_report is not None:
        settings.runtime.on_report(program.report)
        program.tell(settings.runtime.on_report)
    compiled = CompiledModule(captured, program, follow=settings.runtime.weights == "follow")
    if not program.has_engines and not isinstance(model, ExportedProgram):
        # Without an engine the model itself is at least as fast as its decomposed graph; an ExportedProgram is such a graph anyway.
        compiled.run_as(compiler.in_pytorch(model))
    match settings.runtime.out_of_profile:
        case "torch":
            compiled.send_elsewhere(InPyTorch(model, compiler.in_pytorch))
        case "rebuild":
            compiled.send_elsewhere(Rebuild(functools.partial(_compile_wider, model, compiled, settings)))
    return compiled


def _compile_wider(
    model: Any, compiled: CompiledModule, settings: Options, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> CompiledModule:
    """The model once more, for ranges that hold the sizes of a call, or for these sizes alone where it allows no range.

    Raises:
        CompileError: A stage refused.
        ValueError: Weights have changed, and the program is frozen.
    """
    compiled.check_unchanged()
    convention = compiled.captured.convention
    once = dataclasses.replace(
        settings,
        runtime=dataclasses.replace(settings.runtime, out_of_profile="error"),
        build=dataclasses.replace(settings.build, profiles=()),
    )
    compiler = Compiler(once)
    if isinstance(model, ExportedProgram):
        sizes = sizes_in(convention.checks, convention.arrange(args, kwargs))
        with compiler.clock.measure("export"), compiler.debug.watch("export"):
            return _finish(compiler, model, capture(Exported(model), model, sizes), once)
    shapes = widened_shapes(convention, convention.arrange(args, kwargs))
    try:
        captured, _ = capture_model(compiler, model, (args, kwargs, shapes, None))
    except ExportError:
        if shapes is None:
            raise
        captured, _ = capture_model(compiler, model, (args, kwargs, None, None))
    return _finish(compiler, model, captured, once)


def capture_model(compiler: Compiler, model: Any, examples: tuple[Any, Any, Any, Any]) -> tuple[Captured, tuple[SymbolRanges, ...]]:
    """The model as it is captured for the sizes of the compiler's profiles, and these profiles in its symbols.

    Args:
        compiler: The stages.
        model: As for ``compile``.
        examples: The arguments ``args``, ``kwargs``, ``dynamic_shapes`` and ``inputs`` of ``compile``.

    Raises:
        ExportError: The model cannot be captured.
        TypeError: Arguments of the wrong type.
        ValueError: A profile names a dimension that there is not, or sizes outside of what is declared.
    """
    given_args, kwargs, given_shapes, inputs = examples
    args, dynamic_shapes = _examples(given_args, given_shapes, inputs)
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise TypeError(f"kwargs: expected a mapping of names to values, got {type(kwargs).__name__}")
    if isinstance(dynamic_shapes, (ShapesCollection, AdditionalInputs)) and callable(model):
        dynamic_shapes = _written_out(dynamic_shapes, model, args, kwargs or {})
    with compiler.clock.measure("export"), compiler.debug.watch("export"):
        captured = capture(export_model(model, args, kwargs or {}, dynamic_shapes), model)
    profiles = compiler.options.build.profiles
    return _with_profiles(captured, model, dynamic_shapes, profiles) if profiles else (captured, ())


def _written_out(shapes: ShapesCollection | AdditionalInputs, model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What a collection says of each argument. It knows tensors by identity, and the examples that are traced are copies."""
    try:
        return shapes.dynamic_shapes(model, args, dict(kwargs))  # type: ignore[no-untyped-call]
    except (ValueError, TypeError) as error:
        raise ValueError(f"dynamic_shapes: expected a {type(shapes).__name__} of the example arguments: {error}") from error


def _examples(args: Any, dynamic_shapes: Any, inputs: Any) -> tuple[tuple[Any, ...], Any]:
    if inputs is not None:
        if args is not None or dynamic_shapes is not None:
            raise TypeError("inputs: expected either inputs, or args with dynamic_shapes, got both")
        return examples_of(inputs)
    if args is None:
        return (), dynamic_shapes
    if not isinstance(args, (tuple, list)):
        hint = "give arguments by name in kwargs=" if isinstance(args, Mapping) else "for one tensor write (tensor,)"
        raise TypeError(f"args: expected a tuple of example arguments, got {type(args).__name__}; {hint}")
    return tuple(args), dynamic_shapes
