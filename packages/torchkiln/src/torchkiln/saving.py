"""``torchkiln.save`` and ``torchkiln.load``: a compiled program as one ``.kiln`` file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.fx

from torchkiln.bodies import higher_order_calls
from torchkiln.compiled_module import CompiledModule, LoadedModule
from torchkiln.compiled_program import EngineCall, StitchedProgram
from torchkiln.convention import CallingConvention
from torchkiln.convention_record import convention_from_record, convention_to_record
from torchkiln.engines import EngineKind, choose_engine, spare_of
from torchkiln.layouts import layouts_of
from torchkiln.moving import move_graph
from torchkiln.profiles import SymbolRanges, variants
from torchkiln.report import Report, SegmentReport, report_to_record, with_record
from torchkiln.segment_compiler import plan_bytes
from torchkiln_core import BuildOptions, DimRange, Network, PlanError, PlanFormatError, PlanTargetMismatch, RuntimeOptions
from torchkiln_core.call import source_of
from torchkiln_core.rejection import target_name
from torchkiln_core.stages import Engine
from torchkiln_runtime import Candidate, ContextSettings, ReferenceEngine, ShapeDispatch, TensorRTBuilder, TensorRTLoader
from torchkiln_runtime.kiln_file import SavedProgram, SavedSegment, load_program, save_program

Rebuild = Literal["auto", "never", "always"]
EPILOGUE = "epilogue"
"""Name under which the graph of aliasing outputs is saved, beside the segments."""


def save(compiled: CompiledModule, path: str | os.PathLike[str]) -> None:
    """Writes a compiled module, its weights and its plans to one file; atomic.

    Raises:
        TypeError: Not what ``torchkiln.compile`` returns, or a path that is none.
        PlanError: A torch segment holds an operator that the format does not allow, or the result a type that it cannot name.
    """
    if not isinstance(compiled, CompiledModule):
        raise TypeError(f"save: expected what torchkiln.compile returns, got {type(compiled).__name__}")
    file = _file(path)
    captured, program = compiled.parts
    partition = program.partition
    for call in higher_order_calls(partition):
        name, where = target_name(call.target), source_of(call)
        raise PlanError(
            f"save: a file does not hold the graphs of the higher-order operator {name} ({call.name})" + (f" at {where}" if where else ""),
            fix="compile where the program runs, or choose between the branches with torch.where",
        )
    segments = []
    for segment in partition.segments:
        made = program.segments.get(segment.name)
        graph = segment.module if made is None else None
        network, plans = (None, ()) if made is None else (made.network, made.plans)
        segments.append(SavedSegment(segment.name, segment.kind, segment.calls, network, graph, plans))
    epilogue = captured.convention.epilogue
    if epilogue is not None:
        segments.append(SavedSegment(EPILOGUE, "torch", (), None, epilogue.module, ()))
    state = dict(zip((f"buffer:{name}" for name in captured.convention.mutated_buffers), captured.read_state(), strict=True))
    weights = {f"weight:{name}": partition.program.weights[name] for name in partition.weights}
    signature = {
        "convention": convention_to_record(captured.convention),
        "user_inputs": list(partition.program.user_inputs),
        "weights": list(partition.weights),
        "device": str(program.device),
        "allow_tf32": program.build_options.allow_tf32,
        "profiles": {name: [_profile_record(item) for item in made.profiles] for name, made in program.segments.items() if made.profiles},
        "deterministic": program.build_options.deterministic,
        "layouts": {name: [layout and list(layout) for layout in layouts_of(made.segment)] for name, made in program.segments.items()},
        "report": report_to_record(program.report),
    }
    save_program(SavedProgram(partition.module, tuple(segments), {**weights, **state}, signature, partition.rejections), file)


def load(
    path: str | os.PathLike[str],
    *,
    engine: Literal["auto", "tensorrt", "reference"] = "auto",
    device: str | torch.device | None = None,
    rebuild: Rebuild = "auto",
) -> LoadedModule:
    """Reads what ``save`` wrote.

    Args:
        path: The file.
        engine: As for ``torchkiln.compile``.
        device: Where the program runs; where it was compiled by default. A program compiled on a machine without a GPU, with ``targets``,
            is loaded onto a GPU by ``device="cuda"``.
        rebuild: What to do with a plan for another library, version or GPU: ``"auto"`` builds it anew, ``"never"`` raises, ``"always"``
            builds anew without trying.

    Raises:
        PlanFormatError: The file is truncated, altered, of a newer format, or not one of ours.
        PlanTargetMismatch: A plan does not fit and ``rebuild="never"``, or the program's device is not here.
        BuildError: Building anew failed.
        ValueError: ``rebuild``, ``engine`` or ``device`` is none of the known ones.
        TypeError: The path is none.
    """
    if rebuild not in ("auto", "never", "always"):
        raise ValueError(f"rebuild: expected 'auto', 'never' or 'always', got {rebuild!r}")
    options = RuntimeOptions(engine=engine)
    saved = load_program(_file(path))
    place = _place(saved, device)
    build = _build_options(saved)
    kind = choose_engine(options, build, place)
    parts = {segment.name: segment for segment in saved.segments}
    try:
        epilogue = parts.pop(EPILOGUE, None)
        convention = convention_from_record(saved.signature["convention"], None if epilogue is None else epilogue.graph, place)
        user_inputs = [str(name) for name in saved.signature["user_inputs"]]
        weights = [saved.weights[f"weight:{name}"].to(place) for name in saved.signature["weights"]]
        profiles = {name: [_read_profile(item) for item in every] for name, every in saved.signature.get("profiles", {}).items()}
        layouts = {name: _read_layouts(saved.signature["layouts"][name], part) for name, part in parts.items() if part.kind == "engine"}
        state = tuple(saved.weights[f"buffer:{name}"].to(place) for name in convention.mutated_buffers)
        _check_names(convention, user_inputs)
        report = with_record(_report(saved, tuple(parts.values()), kind), saved.signature.get("report"))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise PlanFormatError(f"{path}: calling convention: {type(error).__name__}: {error}") from error
    engines: dict[str, EngineCall] = {}
    for name, segment in parts.items():
        if segment.kind == "engine":
            loads = _Loads(build, place, rebuild, kind)
            runs = loads.engine(segment, profiles.get(name, ()))
            engines[name] = EngineCall(runs, layouts[name], spare_of(_network_of(segment), build))
        elif segment.graph is not None:
            setattr(saved.stitched, name, move_graph(segment.graph, place))
    run = StitchedProgram(move_graph(saved.stitched, place), engines, weights)
    if build.deterministic:
        run.run_deterministically()
    return LoadedModule(convention, run, user_inputs, state, report)


def _file(path: object) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path: expected the name of a file, got {type(path).__name__} {path!r}")
    return Path(path)


def _network_of(segment: SavedSegment) -> Network:
    if segment.network is None:
        raise PlanFormatError(f"segment {segment.name}: an engine segment without a network record")
    return segment.network


@dataclass(frozen=True, slots=True)
class _Loads:
    """How the engines of a saved program come to run.

    Attributes:
        build: How plans are built anew.
        device: Where engines run.
        rebuild: When they are.
        kind: What runs the segments.
    """

    build: BuildOptions
    device: torch.device
    rebuild: Rebuild
    kind: EngineKind

    def engine(self, segment: SavedSegment, profiles: Sequence[SymbolRanges]) -> Engine:
        """The engine of a segment, or the dispatch between those of its profiles."""
        network = _network_of(segment)
        made = variants(network, profiles)
        loaded = [(name, item, self._one(segment, name, item)) for name, item in made]
        return loaded[0][2] if len(loaded) == 1 else ShapeDispatch([Candidate.of(*item) for item in loaded], None)

    def _one(self, segment: SavedSegment, profile: str, network: Network) -> Engine:
        if self.kind == "reference":
            return ReferenceEngine(network)
        # A deterministic program must not run a size on general kernels first and on its own ones later.
        loader = TensorRTLoader(self.device, settings=ContextSettings(specialization="eager" if self.build.deterministic else "lazy"))
        mismatch: PlanTargetMismatch | None = None
        for plan in segment.plans if self.rebuild != "always" else ():
            if plan.profile == profile:
                try:
                    return loader.load(plan)
                except PlanTargetMismatch as error:
                    mismatch = error
        if self.rebuild == "never":
            raise mismatch or PlanTargetMismatch(
                f"segment {segment.name}: the file holds no plan", fix="load with rebuild='auto', or compile with targets=[...]"
            )
        return loader.load(TensorRTBuilder(self.build).build(network))


def _profile_record(profile: SymbolRanges) -> list[Any]:
    return [profile.name, {symbol: [item.min, item.opt, item.max] for symbol, item in profile.dims.items()}]


def _read_profile(record: Any) -> SymbolRanges:
    name, dims = record
    if not isinstance(dims, dict):
        raise TypeError(f"profile {name}: expected ranges by symbol, got {type(dims).__name__}")
    return SymbolRanges(str(name), {symbol: DimRange(symbol, int(low), int(opt), int(high)) for symbol, (low, opt, high) in dims.items()})


def _read_layouts(record: Any, segment: SavedSegment) -> list[tuple[int, ...] | None]:
    """For each output of an engine, the order of its dimensions in memory where that is not contiguous."""
    layouts = [None if layout is None else tuple(map(int, layout)) for layout in record]
    for layout, (name, value) in zip(layouts, _network_of(segment).outputs, strict=True):
        if layout is not None and sorted(layout) != list(range(value.rank)):
            raise ValueError(f"layout of {segment.name}, {name}: expected an order of {value.rank} dimensions, got {layout}")
    return layouts


def _check_names(convention: CallingConvention, user_inputs: Sequence[str]) -> None:
    """Raises ``ValueError`` unless every input of the program is an argument or a buffer."""
    for names, others in (
        (convention.flat_inputs, convention.flat_positions),
        (convention.buffer_inputs, convention.mutated_buffers),
    ):
        if len(names) != len(others):
            raise ValueError(f"expected as many of {names} as of {others}")
    if unknown := sorted({*user_inputs} - {*convention.flat_inputs, *convention.buffer_inputs}):
        raise ValueError(f"expected arguments and buffers as inputs of the program, got {', '.join(unknown)}")


def _build_options(saved: SavedProgram) -> BuildOptions:
    """Options for the GPU at hand, with what was promised of the saved program's numbers."""
    allow_tf32, deterministic = (bool(saved.signature.get(name, False)) for name in ("allow_tf32", "deterministic"))
    return BuildOptions(targets=("current",), allow_tf32=allow_tf32, deterministic=deterministic)


def _place(saved: SavedProgram, device: str | torch.device | None) -> torch.device:
    if device is not None:
        try:
            place = torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"device: expected 'cpu', 'cuda' or 'cuda:0', got {device!r}") from error
        if place.type not in ("cpu", "cuda"):
            raise ValueError(f"device: expected 'cpu', 'cuda' or 'cuda:0', got {device!r}")
    else:
        try:
            place = torch.device(str(saved.signature["device"]))
        except (KeyError, RuntimeError) as error:
            raise PlanFormatError(f"device: {error}") from error
    if place.type == "cuda" and not torch.cuda.is_available():
        raise PlanTargetMismatch(
            f"the program runs on {place}, and torch sees no GPU here", fix="load with device='cpu' to run it on the reference engine"
        )
    if place.type == "cpu":
        # Tensors on "cpu:0" say that they are on "cpu".
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device()) if str(place) == "cuda" else place


def _report(saved: SavedProgram, segments: tuple[SavedSegment, ...], kind: EngineKind) -> Report:
    reports = tuple(
        SegmentReport(
            segment.name,
            segment.kind,
            segment.calls,
            0 if segment.network is None else len(segment.network.steps),
            plan_bytes(segment.plans) if segment.kind == "engine" else None,
            sum(plan.build_ms for plan in segment.plans),
        )
        for segment in segments
    )
    return Report(reports, saved.rejections, kind, {}, origin="file")
