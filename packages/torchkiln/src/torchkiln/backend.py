"""The ``torch.compile`` backend, found under its name through the entry point group ``torch_dynamo_backends``."""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.fx
from torch._export.utils import _is_preservable_cia_op, _special_op_to_preserve_cia
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_module_simplified
from torch._guards import TracingContext
from torch.export.exported_program import _override_composite_implicit_decomp

from torchkiln.aliases import Epilogue, LiveSource, OutputRef, assemble, split_aliases
from torchkiln.compiled_program import CompiledProgram
from torchkiln.constants import lift_constants
from torchkiln.jit_sizes import JitSizes
from torchkiln.modes import options_of
from torchkiln.out_of_profile import OR_ELSEWHERE, Rebuild, advised
from torchkiln.profiles import Names, SymbolRanges, hull, names_of_sources, resolve
from torchkiln.ranges import ranges_of
from torchkiln.stages import Compiler
from torchkiln.weights import WeightWatch
from torchkiln.widening import widened
from torchkiln_core import ExportError, InputKind, InternalError, Options, Program, ProgramInput, ShapeOutOfProfile

_LOG = logging.getLogger("torchkiln")
Outside = Literal["error", "torch", "rebuild"]
"""What becomes of a call whose sizes no engine takes."""


def torchkiln(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compiles a captured graph; ``torch.compile(model, backend="torchkiln", options={...})`` calls it.

    Args:
        graph: A graph of torch functions, as Dynamo captures it.
        example_inputs: Its inputs; parameters and buffers among them become weights of the engines.
        options: As the keywords of ``torchkiln.compile``.
        mode: One of ``torchkiln.modes.MODES``: the options that it stands for.

    Raises:
        ValueError: An unknown mode or option, or a value outside its range.
        CompileError: A stage refused, or torch.compile is not the caller.
    """
    compiler = Compiler(Options.from_keywords(options_of(mode, options or {})))
    _tracing_context()
    trains = torch.is_grad_enabled() and any(isinstance(value, torch.Tensor) and value.requires_grad for value in example_inputs)
    with ExitStack() as tracing:
        if not trains:
            tracing.enter_context(_keep_composites(compiler))

        def infer(graph: torch.fx.GraphModule) -> JitProgram:
            # The graph is traced, and lowering decomposes what converters refuse, for which it needs the operators' own kernels.
            tracing.close()
            return _compile_forward(compiler, graph, _weight_positions(trained=False))

        compiled: Callable[..., Any] = aot_module_simplified(
            graph,
            list(example_inputs),
            fw_compiler=lambda graph, _: _compile_forward(compiler, graph, _weight_positions(trained=True)),
            bw_compiler=functools.partial(_run_in_pytorch, compiler),
            inference_compiler=lambda graph, _: infer(graph),
            decompositions={},
        )
    return CapturedGraph(compiled, compiler.in_pytorch(graph.forward))


class _NoEngineError(Exception):
    """What was built of a graph holds no engine; nothing of the call has run yet."""


class CapturedGraph:
    """A graph of which engines are built at the first call; if there are none, it runs as it was captured.

    Args:
        compiled: Runs nothing where it finds that there is no engine.
        own: The graph in torch functions, as Dynamo captured it, not decomposed.
    """

    def __init__(self, compiled: Callable[..., Any], own: Callable[..., Any]) -> None:
        self._run = compiled
        self._own = own
        self._has_engines = False

    def __call__(self, *arguments: Any) -> Any:
        """Runs the graph on the arguments that Dynamo passes."""
        try:
            results = self._run(*arguments)
        except _NoEngineError:
            # One that is built later, for other sizes, may have none where this one has.
            if not self._has_engines:
                self._run = self._own
            return self._own(*arguments)
        self._has_engines = True
        return results


@dataclass(frozen=True, slots=True)
class JitOutputs:
    """Where each output of a captured graph comes from; views of arguments and of other outputs are views, as in eager."""

    refs: tuple[OutputRef, ...]
    epilogue: Epilogue | None


@dataclass(frozen=True, slots=True)
class JitSource:
    """What engines are made from.

    Attributes:
        captured: The graph as it was captured; its weights are constants that callers do not pass.
        outputs: How the graph's outputs are made from arguments and the program's results.
        names: What the user calls the dimensions of its symbols.
    """

    captured: Program
    outputs: JitOutputs
    names: Names


class JitProgram:
    """A captured forward graph; builds its engines at the first call, when the weights' values are there.

    Args:
        compiler: The stages.
        source: The graph.
        profiles: One plan is built for each.
        outside: What becomes of calls whose sizes no engine takes.
    """

    _boxed_call = True

    def __init__(self, compiler: Compiler, source: JitSource, profiles: Sequence[SymbolRanges], outside: Outside) -> None:
        self._compiler = compiler
        self._source = source
        self._profiles = tuple(profiles)
        self._outside = outside
        self._sizes = JitSizes(source.captured, source.names)
        program = self._lowered = compiler.lower(source.captured)
        # Lowering adds constants of its own behind the captured ones.
        self._constants = program.weights
        self._follow = compiler.options.runtime.weights != "frozen"
        self._weights = [
            (index, item.name)
            for index, item in enumerate(program.inputs)
            if item.kind is InputKind.WEIGHT and item.name not in self._constants
        ]
        self._users = [index for index, item in enumerate(program.inputs) if item.kind is InputKind.USER]
        self._program: CompiledProgram | None = None
        self._watch: WeightWatch | None = None
        self._lock = threading.Lock()
        self._warned = False
        self._rebuilt = Rebuild(self._wider, lambda args, _: tuple(self._sizes.of(args[0]).items()))

    def __call__(self, arguments: list[Any]) -> list[Any]:
        """Runs the graph on all its inputs, weights included, in the order of its placeholders.

        Raises:
            ShapeOutOfProfile: No engine takes the sizes, and such calls are errors.
        """
        program = self._current(arguments)
        # As captured, its backward pass would be autograd's own, outside of torch's switches for reproducible results.
        if not program.has_engines and not self._compiler.options.build.deterministic:
            raise _NoEngineError
        inputs = [arguments[index] for index in self._users]
        try:
            results = program.run(inputs)
        except ShapeOutOfProfile as error:
            refusal = self._sizes.refusal(error, arguments, self._source.captured.dims)
            match self._outside:
                case "error":
                    raise advised(refusal, OR_ELSEWHERE) from error
                case "rebuild":
                    rebuilt: list[Any] = self._rebuilt(refusal, (arguments,), {})
                    return rebuilt
                case _:
                    results = self._in_pytorch(refusal, arguments)
        outputs = self._source.outputs
        return assemble(outputs.refs, outputs.epilogue, {"argument": arguments, "result": results})

    def accepts(self, args: tuple[Any, ...], _: Mapping[str, Any]) -> bool:
        """Whether the sizes of a call are in the range of this program."""
        dims = self._source.captured.dims
        return all(dims[symbol].min <= size <= dims[symbol].max for symbol, size in self._sizes.of(args[0]).items() if symbol in dims)

    def refresh(self) -> None:
        """Nothing to do: weights are arguments of every call."""

    def _in_pytorch(self, refusal: ShapeOutOfProfile, arguments: list[Any]) -> Sequence[Any]:
        # Dynamo's guards hold for this size, so the call must succeed: the lowered graph is functional and runs as it is.
        if not self._warned:
            self._warned = True
            _LOG.warning("this size runs in PyTorch: %s", refusal)
        results: Sequence[Any] = self._compiler.in_pytorch(self._lowered.module)(*arguments, *self._constants.values())
        return results

    def _wider(self, args: tuple[Any, ...], _: Mapping[str, Any]) -> JitProgram:
        """The graph once more, for ranges that hold the sizes of a call: Dynamo's guards hold for them.

        Raises:
            CompileError: A stage refused.
            ValueError: Weights have changed, and the program is frozen.
        """
        if not self._follow and self._watch is not None and self._watch.changed(self._weights_in(args[0])):
            raise ValueError("weights have changed since the compilation, which is frozen; compile with weights='follow'")
        captured = self._source.captured
        dims = {**captured.dims}
        dims |= {symbol: widened(dims[symbol], size) for symbol, size in self._sizes.of(args[0]).items() if symbol in dims}
        return JitProgram(self._compiler, dataclasses.replace(self._source, captured=dataclasses.replace(captured, dims=dims)), (), "error")

    def _weights_in(self, arguments: Sequence[Any]) -> dict[str, Any]:
        return {name: arguments[index] for index, name in self._weights}

    def _current(self, arguments: list[Any]) -> CompiledProgram:
        with self._lock:
            if self._program is None or self._watch is None:
                weights = self._weights_in(arguments)
                lowered = dataclasses.replace(self._lowered, weights={**weights, **self._constants})
                self._program = self._compiler.build(lowered, self._profiles)
                self._watch = WeightWatch(weights)
                on_report = self._compiler.options.runtime.on_report
                if on_report is not None:
                    on_report(self._program.report)
                    self._program.tell(on_report)
            elif self._follow and (changed := self._watch.changed(weights := self._weights_in(arguments))):
                self._program.replace_weights({**weights, **self._constants}, changed)
                self._watch.remember(weights)
            return self._program


def _compile_forward(compiler: Compiler, graph: torch.fx.GraphModule, weights: frozenset[int]) -> JitProgram:
    constants = lift_constants(graph)
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    inputs = tuple(
        ProgramInput(node.name, InputKind.WEIGHT, node.name)
        if index in weights or node.name in constants
        else ProgramInput(node.name, InputKind.USER)
        for index, node in enumerate(placeholders)
    )
    live: dict[str, LiveSource] = {node.name: ("argument", index) for index, node in enumerate(placeholders) if node.name not in constants}
    outputs = JitOutputs(*split_aliases(graph, (), live))
    graph.recompile()
    options = compiler.options
    names, dims = names_of_sources(graph), ranges_of(graph)
    # A graph behind a break, or of sizes that Dynamo has not seen vary yet, does not have every dimension that profiles name.
    profiles = resolve(options.build.profiles, dims, names)
    captured = Program(graph, inputs, constants, hull(dims, profiles))
    outside: Outside = "torch" if options.runtime.out_of_profile == "auto" else options.runtime.out_of_profile
    return JitProgram(compiler, JitSource(captured, outputs, names), profiles, outside)


def _weight_positions(*, trained: bool) -> frozenset[int]:
    """Positions of the parameters and buffers that stay: neither mutated by the graph nor, where gradients are taken, trained."""
    metadata = _tracing_context().fw_metadata
    if metadata is None:
        raise InternalError("torch.compile: expected AOTAutograd's metadata of the graph in its tracing context, got none")
    infos = {index: metadata.input_info[index] for index in metadata.static_input_indices}
    return frozenset(index for index, info in infos.items() if not info.mutates_data and not (trained and info.requires_grad))


def _tracing_context() -> TracingContext:
    """What Dynamo and AOTAutograd know of the graph that is being compiled."""
    context = TracingContext.try_get()
    if context is None:
        raise ExportError("torchkiln's backend: expected a call by torch.compile, got another", fix="call torchkiln.compile instead")
    return context


def _run_in_pytorch(compiler: Compiler, graph: torch.fx.GraphModule, fake_inputs: Sequence[Any]) -> Callable[..., Any]:
    boxed: Callable[..., Any] = make_boxed_func(compiler.in_pytorch(graph.forward))
    return boxed


def _keep_composites(compiler: Compiler) -> AbstractContextManager[Any]:
    """Keeps composite operators that a converter or a decomposition takes whole while the graph is traced, as export does ahead of time."""
    kept = {
        target: _special_op_to_preserve_cia
        for target in compiler.targets
        if isinstance(target, torch._ops.OpOverload) and _is_preservable_cia_op(target)
    }
    context: AbstractContextManager[Any] = _override_composite_implicit_decomp(kept)
    return context
