"""Options, by stage. Each field exists once and is documented once; ``torchkiln.compile`` takes all of them as keywords.

``option(..., keyed=True)`` marks a field that changes what is built and so enters the plan key.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch

from torchkiln_core.profile import Profile


def option(default: Any, doc: str, *, keyed: bool) -> Any:
    """A field of an options class with its documentation and whether it enters the plan key."""
    return dataclasses.field(default=default, metadata={"doc": doc, "keyed": keyed})


@dataclass(frozen=True, slots=True)
class LoweringOptions:
    """How a program is lowered."""

    lowering_debug: bool = option(
        False, "Run the graph before and after every pass and name the first pass that changes a result.", keyed=False
    )
    decompositions: object | None = option(
        None, "The decompositions, as a `torchkiln_lowering.Decompositions`; torchkiln's own without it.", keyed=False
    )
    truncate_double: bool = option(
        False, "Compute in float32 what the model computes in float64, and return float64. Otherwise float64 runs in PyTorch.", keyed=False
    )
    autocast: torch.dtype | None = option(  # noqa: RUF009 - `option` returns a field
        None,
        "`torch.float16` or `torch.bfloat16`: run products (matmul, convolution, attention) and what only passes them on in that dtype, "
        "and all else (reductions, norms, softmax, exp, pow) in float32.",
        keyed=False,
    )
    autocast_excluded_nodes: tuple[str, ...] = option((), "Names of calls that `autocast` leaves in float32 (globs allowed).", keyed=False)
    autocast_excluded_ops: tuple[str | Callable[..., Any], ...] = option(
        (), "Operators that `autocast` leaves in float32, as objects or names with or without overload (`aten.linear`).", keyed=False
    )
    autocast_max_output: int | float = option(
        512.0, "`autocast` leaves calls in float32 whose results are larger than this on the calibration inputs.", keyed=False
    )
    autocast_calibration: tuple[tuple[Any, ...], ...] = option(
        (), "Inputs that `autocast` measures results on, each a flat tuple of what the model takes.", keyed=False
    )

    def __post_init__(self) -> None:
        if self.autocast not in (None, torch.float16, torch.bfloat16):
            raise ValueError(f"autocast: expected torch.float16 or torch.bfloat16, got {self.autocast}")
        if not self.autocast_max_output > 0:
            raise ValueError(f"autocast_max_output: expected a positive number, got {self.autocast_max_output}")


@dataclass(frozen=True, slots=True)
class PartitionOptions:
    """How a program is divided."""

    min_block_size: int = option(
        5, "Engine segments with fewer calls run in PyTorch, unless the whole program is one engine segment.", keyed=False
    )
    torch_executed_ops: tuple[str | Callable[..., Any], ...] = option(
        (), "Operators that stay in PyTorch, as objects or names with or without overload (`aten.relu`).", keyed=False
    )
    torch_executed_modules: tuple[str | type, ...] = option(
        (), "Modules that stay in PyTorch, as qualified names (globs allowed) or classes.", keyed=False
    )
    require_full_compilation: bool = option(
        False, "Raise a PartitionError that lists every rejection instead of leaving calls in PyTorch.", keyed=False
    )
    node_overrides: tuple[tuple[str, str], ...] = option(
        (),
        "For experts: where single calls run, as a mapping of node names of the lowered program (as in the report, globs allowed) to "
        "`torch` or `engine`; `engine` keeps a small segment, and is an error where the call cannot run in an engine.",
        keyed=False,
    )
    border_cost: Literal["auto", "on", "off"] = option(
        "auto",
        "Whether engine segments that cost more than they save, by the model of `docs/partitioning.md`, run in PyTorch. `auto`: unless "
        "`min_block_size` is below its default, which asks for small engines.",
        keyed=False,
    )
    partition_report: Callable[[str], Any] | str | None = option(  # noqa: RUF009 - `option` returns a field
        None,
        "Where a table of all engine segments considered goes, with the numbers behind each decision: a function of text, such as "
        "`print`, or the name of a file. Once per division, so again after a fallback.",
        keyed=False,
    )

    def __post_init__(self) -> None:
        if self.min_block_size < 1:
            raise ValueError(f"min_block_size: expected at least 1, got {self.min_block_size}")
        if self.border_cost not in ("auto", "on", "off"):
            raise ValueError(f"border_cost: expected one of auto, on, off, got {self.border_cost!r}")
        for name, place in self.node_overrides:
            if place not in ("engine", "torch"):
                raise ValueError(f"node_overrides: expected 'engine' or 'torch' for {name!r}, got {place!r}")


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How plans are built."""

    targets: tuple[str, ...] = option(
        (), "What plans are built for: `sm_86`, `sm_89`, `sm_120`, ... or `current`. Empty: the GPU at hand, if there is one.", keyed=True
    )
    workspace_bytes: int | None = option(None, "Upper limit of an engine's scratch memory in bytes.", keyed=True)
    allow_tf32: bool | None = option(
        None,
        "Let fp32 matrix products and convolutions use TF32; by default `torchkiln.backends.allow_tf32`, which follows torch's flags. With "
        "TensorRT-RTX all programs of a process must agree on it, and the environment variable `NVIDIA_TF32_OVERRIDE=0` turns it off "
        "for all.",
        keyed=True,
    )
    library: Literal["tensorrt", "tensorrt_rtx"] | None = option(
        None, "Which TensorRT library builds and runs plans; by default the one that is installed, TensorRT-RTX first.", keyed=False
    )
    optimization_level: int | None = option(
        None, "TensorRT's builder optimization level, 0 to 5; TensorRT-RTX 1.6 builds the same plan at every level.", keyed=True
    )
    deterministic: bool | None = option(
        None,
        "Same inputs, same bits, in every run and process on one machine: calls whose results depend on the order of writes run in "
        "PyTorch, all that runs in PyTorch does so under `torch.use_deterministic_algorithms(True)`, and no kernel is chosen by timing or "
        "replaced while the program runs. By default `torchkiln.backends.deterministic`, which follows torch.",
        keyed=True,
    )
    benchmark: bool | None = option(
        None,
        "Where TensorRT runs engines, each engine segment is timed against the same calls in PyTorch, and the faster of the two is kept; "
        "kernels for new sizes are compiled before their first use; TensorRT for data centres times its kernels more often. By default "
        "`torchkiln.backends.benchmark`. Nothing is timed where `deterministic` holds.",
        keyed=True,
    )
    profiles: tuple[Profile, ...] = option(
        (),
        "Named ranges of the dynamic dimensions, as `torchkiln.Profile`: one plan is built for each, and a call runs on the tightest that "
        "takes its sizes. Sizes in none of them are outside.",
        keyed=False,
    )

    def __post_init__(self) -> None:
        if self.deterministic and self.benchmark:
            raise ValueError("benchmark: expected False with deterministic=True, got True: what is faster differs from process to process")
        if self.library not in (None, "tensorrt", "tensorrt_rtx"):
            raise ValueError(f"library: expected one of tensorrt, tensorrt_rtx, got {self.library!r}")
        if self.optimization_level is not None and not 0 <= self.optimization_level <= 5:
            raise ValueError(f"optimization_level: expected 0 to 5, got {self.optimization_level}")
        if self.workspace_bytes is not None and self.workspace_bytes <= 0:
            raise ValueError(f"workspace_bytes: expected a positive number of bytes, got {self.workspace_bytes}")
        names = [profile.name for profile in self.profiles]
        if len(set(names)) != len(names):
            raise ValueError(f"profiles: expected different names, got {', '.join(names)}")


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """How the compiled program runs."""

    engine: Literal["auto", "tensorrt", "reference"] = option(
        "auto",
        "`tensorrt`, `reference`, or `auto`: TensorRT where a library and a GPU it supports are there, else the reference.",
        keyed=False,
    )
    weights: Literal["auto", "frozen", "follow"] = option(
        "auto",
        "`follow` notices parameters that change after compilation. `frozen` does not look: TensorRT engines keep what they were built "
        "with, while PyTorch segments and the reference engine read the live tensors. `auto`: frozen ahead of time, follow under "
        "torch.compile.",
        keyed=False,
    )
    cuda_graphs: Literal["auto", "off"] = option(
        "auto",
        "`auto`: runs of an engine are captured in CUDA graphs and replayed, which needs no work of the caller. `off`: kernels are "
        "launched one by one in every run.",
        keyed=False,
    )
    out_of_profile: Literal["auto", "error", "torch", "rebuild"] = option(
        "auto",
        "What a call does whose sizes are outside what was compiled: `error` raises `ShapeOutOfProfile`, `torch` runs it in PyTorch, "
        "`rebuild` compiles once more for a range that holds its sizes, and keeps that. `auto`: `error` ahead of time, `torch` under "
        "torch.compile, whose guards have let the call pass.",
        keyed=False,
    )
    specialize: int | None = option(
        None,
        "After this many calls of an engine at one set of shapes, build a static plan for them in a background thread and run them on it "
        "from then on; `None` never does.",
        keyed=False,
    )
    specialize_limit: int = option(8, "Static plans that `specialize` keeps for one engine; the one unused for longest goes.", keyed=False)
    kernel_specialization: Literal["eager", "lazy", "none"] = option(
        "eager",
        "When TensorRT-RTX compiles kernels for the sizes of a dynamic engine: `eager` waits for them at the first call with a size, "
        "`lazy` runs general ones until those are ready, `none` never compiles them.",
        keyed=False,
    )
    torch_segments: Literal["eager", "inductor"] = option(
        "eager",
        "How segments in PyTorch run: call by call, or compiled by inductor when they first run, in the process that compiled them; a "
        "loaded program runs them call by call.",
        keyed=False,
    )
    on_report: Callable[[Any], None] | None = option(  # noqa: RUF009 - `option` returns a field
        None, "Called with the report of each compiled graph; the way to read it under torch.compile.", keyed=False
    )

    def __post_init__(self) -> None:
        choices = {
            "engine": ("auto", "tensorrt", "reference"),
            "weights": ("auto", "frozen", "follow"),
            "cuda_graphs": ("auto", "off"),
            "torch_segments": ("eager", "inductor"),
            "out_of_profile": ("auto", "error", "torch", "rebuild"),
            "kernel_specialization": ("eager", "lazy", "none"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}: expected one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if self.specialize is not None and self.specialize < 1:
            raise ValueError(f"specialize: expected a number of calls of at least 1, or None, got {self.specialize}")
        if self.specialize_limit < 1:
            raise ValueError(f"specialize_limit: expected at least 1, got {self.specialize_limit}")


@dataclass(frozen=True, slots=True)
class DiagnosticOptions:
    """What a compilation tells of itself."""

    debug_dir: str | None = option(
        None,
        "When compiling fails, or a segment falls back to PyTorch, a folder below this one gets the graphs, networks, options and the "
        "error, without weights: what a bug report needs.",
        keyed=False,
    )


@dataclass(frozen=True, slots=True)
class ExtensionOptions:
    """What users add to the stages."""

    lowering: object | None = option(
        None, "The passes of the lowering, a `torchkiln_lowering.Pipeline`; by default the one of the process.", keyed=False
    )
    converters: tuple[Callable[..., Any], ...] = option(
        (), "Converters that are used besides, or in place of, the registered ones; made by `@torchkiln_converters.converter`.", keyed=False
    )


@dataclass(frozen=True, slots=True)
class Options:
    """The options of every stage."""

    lowering: LoweringOptions = LoweringOptions()
    partition: PartitionOptions = PartitionOptions()
    build: BuildOptions = BuildOptions()
    runtime: RuntimeOptions = RuntimeOptions()
    diagnostics: DiagnosticOptions = DiagnosticOptions()
    extensions: ExtensionOptions = ExtensionOptions()

    @staticmethod
    def from_keywords(keywords: Mapping[str, Any]) -> Options:
        """Sorts keyword arguments into their stages; lists become tuples.

        Raises:
            ValueError: Unknown keyword (with a suggestion), or a value outside its range.
            TypeError: A value of the wrong type.
        """
        home = {item.name: stage.name for stage in dataclasses.fields(Options) for item in dataclasses.fields(cast(Any, stage.default))}
        stages: dict[str, dict[str, Any]] = {stage.name: {} for stage in dataclasses.fields(Options)}
        for name, value in keywords.items():
            if name == "options":
                raise ValueError(
                    "options: expected each option as a keyword, such as min_block_size=1, "
                    f"got {type(value).__name__}; the dictionary options={{...}} is an argument of torch.compile"
                )
            if name not in home:
                close = difflib.get_close_matches(name, home, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"known options: {', '.join(sorted(home))}"
                raise ValueError(f"unknown option {name!r}: {hint}")
            stages[home[name]][name] = _as_tuple(value)
        defaults = Options()
        merged = {name: _replace(getattr(defaults, name), given) for name, given in stages.items()}
        return Options(**merged)

    @staticmethod
    def fields() -> tuple[dataclasses.Field[Any], ...]:
        """Every option of every stage, in order."""
        return tuple(item for stage in dataclasses.fields(Options) for item in dataclasses.fields(cast(Any, stage.default)))

    def keyed(self) -> dict[str, Any]:
        """The options that change what is built, by name."""
        return {
            item.name: getattr(getattr(self, stage.name), item.name)
            for stage in dataclasses.fields(Options)
            for item in dataclasses.fields(cast(Any, stage.default))
            if item.metadata["keyed"]
        }


def _replace(stage: Any, given: Mapping[str, Any]) -> Any:
    hints = typing.get_type_hints(type(stage))
    for name, value in given.items():
        if not _fits(hints[name], value):
            fix = f"; write [{value!r}]" if isinstance(value, str) and _fits(hints[name], (value,)) else ""
            raise TypeError(f"{name}: expected {_shown(hints[name])}, got {type(value).__name__} {value!r}{fix}")
    return dataclasses.replace(stage, **given)


def _fits(hint: Any, value: Any) -> bool:
    """Whether a value has the type of a field; a literal's values are checked by its stage."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(arm, value) for arm in arguments)
    if origin is Literal:
        return isinstance(value, str)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        items = arguments[:1] * len(value) if arguments[-1] is Ellipsis else arguments
        return len(items) == len(value) and all(map(_fits, items, value))
    if origin is Callable:
        return callable(value)
    return hint is Any or (isinstance(value, hint) and (hint is bool or not isinstance(value, bool)))


def _shown(hint: Any) -> str:
    if isinstance(hint, type) and not typing.get_args(hint):
        return hint.__name__
    return str(hint).replace("collections.abc.", "").replace("typing.", "")


def _as_tuple(value: Any) -> Any:
    """Lists as tuples, mappings as tuples of pairs; sets as tuples too, in an order that is the same in every process."""
    if isinstance(value, Mapping):
        return tuple(value.items())
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(value, key=str))
    return tuple(value) if isinstance(value, list) else value
