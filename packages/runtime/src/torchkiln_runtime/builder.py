"""The plan builder: a network record to a serialized TensorRT engine."""

from __future__ import annotations

import dataclasses
import functools
import time
from typing import Any

import torch

from torchkiln_core import BuildError, BuildOptions, InternalError, Network, Plan, Step, Target, network_key
from torchkiln_runtime.adapter import Definition, Replay, input_name
from torchkiln_runtime.host_memory import return_freed
from torchkiln_runtime.library import Collection, Library, require_library
from torchkiln_runtime.ones import inner_sizes
from torchkiln_runtime.plan_file import PlanFile, stream_writer
from torchkiln_runtime.precision import effective_tf32, tf32_scope
from torchkiln_runtime.reference import bindings_of
from torchkiln_runtime.shapes import ShapeRules, find_symbols
from torchkiln_runtime.targets import Targets, resolve_targets
from torchkiln_runtime.timing import configure_timing

_DEFAULTS = BuildOptions()
_ADAPTER = 4
"""Counts the ways in which records were written as layers of TensorRT, for plans that are kept between releases."""


class TensorRTBuilder:
    """Builds plans. Threads may share a builder: TensorRT releases Python's lock while it builds.

    Args:
        options: How plans are built.
        library: TensorRT; by default the one that the options name, or that is installed.
    """

    def __init__(self, options: BuildOptions = _DEFAULTS, library: Library | None = None) -> None:
        self._options = options
        self._library = library

    def build(self, network: Network) -> Plan:
        """Builds a plan, on any machine when the options name their targets.

        Raises:
            BuildError: No library, an unknown target, no GPU where one is needed, TensorRT refuses the network, or this process
                already uses the other ``allow_tf32``.
            InternalError: TensorRT infers another dtype or shape than the record has.
        """
        return self.prepare(network).build()

    def key(self, network: Network) -> str:
        """The key that the plan of ``network`` would have.

        Raises:
            BuildError: As ``build``, of the library and the targets.
        """
        return self.prepare(network).key

    def prepare(self, network: Network) -> PreparedBuild:
        """A build that has not begun.

        Raises:
            BuildError: As ``build``, of the library and the targets.
        """
        library = self._library or require_library(self._options.library)
        return PreparedBuild(network, self._options, library, resolve_targets(self._options.targets, library))


class PreparedBuild:
    """The build of one network: its key first, then its plan."""

    def __init__(self, network: Network, options: BuildOptions, library: Library, targets: Targets) -> None:
        self._network = network
        self._options = options
        self._library = library
        self._targets = targets
        self._target = Target(library.name, library.version, targets.names)
        self._allow_tf32 = effective_tf32(library, bool(options.allow_tf32))

    @functools.cached_property
    def key(self) -> str:
        """A hash of the network's record, the options that enter it and the target."""
        fields = dataclasses.fields(self._options)
        keyed = {field.name: getattr(self._options, field.name) for field in fields if field.metadata["keyed"] and field.name != "targets"}
        keyed |= {
            "allow_tf32": self._allow_tf32,
            "deterministic": bool(self._options.deterministic),
            "benchmark": bool(self._options.benchmark),
            "adapter": _ADAPTER,
        }
        return network_key(self._network, {**keyed, "target": str(self._target), "gpu": self._targets.gpu})

    def build(self) -> Plan:
        """Builds the plan.

        Raises:
            BuildError: As ``TensorRTBuilder.build``.
            InternalError: As ``TensorRTBuilder.build``.
        """
        network, library = self._network, self._library
        inputs, outputs = bindings_of(network)
        if not outputs:
            raise InternalError("network: no outputs")
        symbols = find_symbols(inputs)
        specs = network.specs()
        ShapeRules(inputs, outputs, symbols, [(spec.min_shape, spec.max_shape) for spec in specs])
        key = self.key
        start = time.perf_counter()
        with library.messages.collect("torchkiln.build") as log, tf32_scope(library, self._allow_tf32, BuildError):
            data = _Build(library, self._options, log).run(network, self._targets)
        return_freed()
        build_ms = (time.perf_counter() - start) * 1e3
        return Plan(
            data=data,
            inputs=inputs,
            outputs=outputs,
            symbols=symbols,
            target=self._target,
            key=key,
            build_ms=build_ms,
            allow_tf32=self._allow_tf32,
            inner_sizes=inner_sizes(network, symbols),
        )


class _Build:
    def __init__(self, library: Library, options: BuildOptions, log: Collection) -> None:
        self._library = library
        self._trt = library.module
        self._options = options
        self._log = log

    def run(self, network: Network, targets: Targets) -> torch.Tensor:
        """The serialized engine, uint8 ``[size]``."""
        builder = self._trt.Builder(self._library.logger)
        if builder is None:
            raise self._failure("made no builder")
        definition = Definition(self._library, builder.create_network(self._network_flags()))
        config = builder.create_builder_config()
        self._configure(config, targets)
        self._add_profile(builder, config, network)
        Replay(definition, network, self._log).write()
        # A refused layer has raised already; what TensorRT logged about accepted ones is not the reason of a later failure.
        self._log.errors.clear()
        file = PlanFile()
        built = self._serialize(builder, definition.network, config, file)
        data = file.read()
        if not built:
            raise self._failure(f"built no engine for {', '.join(targets.names)}", self._guilty(network))
        return data

    def _serialize(self, builder: Any, network: Any, config: Any, file: PlanFile) -> bool:
        if hasattr(builder, "build_serialized_network_to_stream"):
            return bool(builder.build_serialized_network_to_stream(network, config, stream_writer(self._trt.IStreamWriter, file)))
        serialized = builder.build_serialized_network(network, config)
        return serialized is not None and bool(file.write(serialized))

    def _network_flags(self) -> int:
        flags = self._trt.NetworkDefinitionCreationFlag
        # TensorRT-RTX networks are always strongly typed; TensorRT's become so by the flag.
        return 1 << int(flags.STRONGLY_TYPED) if hasattr(flags, "STRONGLY_TYPED") else 0

    def _configure(self, config: Any, targets: Targets) -> None:
        flags = self._trt.BuilderFlag
        (config.set_flag if self._options.allow_tf32 else config.clear_flag)(flags.TF32)
        # Without it `x - x` may fold to 0 and hide a NaN.
        config.set_flag(flags.STRICT_NANS)
        if self._options.workspace_bytes is not None:
            config.set_memory_pool_limit(self._trt.MemoryPoolType.WORKSPACE, self._options.workspace_bytes)
        configure_timing(config, self._options, self._library)
        if targets.values:
            config.num_compute_capabilities = len(targets.values)
            for index, value in enumerate(targets.values):
                if not config.set_compute_capability(value, index):
                    raise self._failure(f"refuses the target {targets.names[index]}")

    def _add_profile(self, builder: Any, config: Any, network: Network) -> None:
        specs = network.specs()
        if all(value.is_static for value in network.inputs):
            return
        profile = builder.create_optimization_profile()
        for index, spec in enumerate(specs):
            if not network.inputs[index].is_static:
                profile.set_shape(input_name(index), spec.min_shape, spec.opt_shape, spec.max_shape)
        if config.add_optimization_profile(profile) < 0:
            raise self._failure("refuses the ranges of the inputs")

    def _guilty(self, network: Network) -> Step | None:
        """The layer that TensorRT names in its reasons, if it names one."""
        text = self._log.text
        named = [step for step in network.all_steps() if step.name in text]
        return max(named, key=lambda step: len(step.name), default=None)

    def _failure(self, what: str, step: Step | None = None) -> BuildError:
        return BuildError(
            f"{self._library.name} {self._library.version} {what}\n{self._log.text}",
            node=None if step is None else step.name,
            where=None if step is None else step.where,
            fix=None if step is None else "run the operator in PyTorch with torch_executed_ops",
        )
