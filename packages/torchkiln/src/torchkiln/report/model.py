"""The report as data."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from torchkiln.report.dot import to_dot
from torchkiln.report.fixes import fix_of
from torchkiln.report.html import to_page
from torchkiln.report.table import to_table
from torchkiln_core import Rejection
from torchkiln_core.partition import SegmentKind


@dataclass(frozen=True, slots=True)
class CallReport:
    """One call of a segment.

    Attributes:
        name: Node of the lowered program; unique, but a constant that several segments make has the same name in each.
        target: Operator, such as ``aten.relu.default``.
        module: Qualified name of the user's module that the call comes from; empty for the root, or where it is not recorded.
        result: Dtype and shape of the result, such as ``float32[s0, 3]``.
        reads: Names of the calls and inputs that it reads.
        flops: Estimated operations.
        where: The user's source line.
    """

    name: str
    target: str
    module: str
    result: str
    reads: tuple[str, ...]
    flops: int
    where: str | None


@dataclass(frozen=True, slots=True)
class BorderValue:
    """A tensor that enters or leaves a segment.

    Attributes:
        name: Node of the lowered program.
        type: Dtype and shape, such as ``float32[s0, 3]``.
        profile: For each size that varies, its ``(min, opt, max)``, by its text.
        num_bytes: Bytes at the sizes that the program is tuned for.
        data_dependent: Whether a size is known only while the program runs.
    """

    name: str
    type: str
    profile: Mapping[str, tuple[int, int, int]]
    num_bytes: int
    data_dependent: bool


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """One segment.

    Attributes:
        name: ``engine_0``, ``torch_1``, ...
        kind: ``"engine"`` or ``"torch"``.
        calls: Operators in order.
        layers: Number of TensorRT layers; 0 in PyTorch.
        plan_bytes: Size of each plan built, by target.
        build_ms: Time that the builder took, over all plans.
        flops: Estimated operations; products count two per multiplication and addition, other calls one per element. ``None`` where a
            file does not say it; what follows is empty then.
        weights: Bytes of each weight that it reads, by placeholder name.
        inputs: Tensors that cross its border inwards.
        outputs: Tensors that cross its border outwards.
        details: Its calls one by one.
    """

    name: str
    kind: SegmentKind
    calls: tuple[str, ...]
    layers: int = 0
    plan_bytes: Mapping[str, int] | None = None
    build_ms: float = 0.0
    flops: int | None = None
    weights: Mapping[str, int] = field(default_factory=dict)
    inputs: tuple[BorderValue, ...] = ()
    outputs: tuple[BorderValue, ...] = ()
    details: tuple[CallReport, ...] = ()

    @property
    def weight_bytes(self) -> int | None:
        """Bytes of the weights that it reads, if known."""
        return None if self.flops is None else sum(self.weights.values())

    @property
    def border_bytes(self) -> int | None:
        """Bytes that cross its border in one call, both ways, if known."""
        return None if self.flops is None else sum(value.num_bytes for value in (*self.inputs, *self.outputs))


@dataclass(frozen=True, slots=True)
class Shares:
    """How much of a program runs in engines, each from 0 to 1; 1 where there is nothing to share out, ``None`` where it is unknown."""

    calls: float
    flops: float | None
    weights: float | None


@dataclass(frozen=True, slots=True)
class SizeReport:
    """A size that varies.

    Attributes:
        symbol: As in shapes of the report.
        places: Where the program's inputs have it, such as ``x dimension 0`` or ``x dimension 2 is 16*s0``.
        min: Smallest.
        opt: What plans are tuned for.
        max: Largest.
        assumed: Whether ``max`` is a default, since nothing bounds the size.
    """

    symbol: str
    places: tuple[str, ...]
    min: int
    opt: int
    max: int
    assumed: bool


@dataclass(frozen=True, slots=True)
class StaticEngineReport:
    """What ``specialize`` did about one set of shapes.

    Attributes:
        segment: Name of the engine segment.
        shapes: Of its inputs.
        state: ``"building"``, ``"serving"``, ``"failed"``, or ``"replaced"`` by one that was used more.
        build_ms: Time from the start of the build to the swap.
        reason: Why it failed.
    """

    segment: str
    shapes: tuple[tuple[int, ...], ...]
    state: str
    build_ms: float
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """A compilation, or what one would do.

    Attributes:
        segments: In call order.
        rejections: Why calls stay in PyTorch, in graph order.
        engine: What runs the engine segments: ``"tensorrt"``, ``"reference"``, or ``"not built"``.
        stage_ms: Time of each stage in milliseconds.
        inputs: Names of the program's inputs.
        results: Names of the calls and inputs that its results come from.
        sizes: The sizes that vary, with their ranges.
        static_engines: What became of shapes that came often, where ``specialize`` is on.
        origin: What the program was made from: the user's model, or a file, which holds none.
    """

    segments: tuple[SegmentReport, ...]
    rejections: tuple[Rejection, ...]
    engine: str
    stage_ms: Mapping[str, float]
    inputs: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    sizes: tuple[SizeReport, ...] = ()
    static_engines: tuple[StaticEngineReport, ...] = ()
    origin: Literal["model", "file"] = "model"

    @property
    def shares(self) -> Shares:
        """What part of calls, operations and weights is in engines; a weight that both sides read counts for engines."""
        engines = [segment for segment in self.segments if segment.kind == "engine"]
        held = {name for segment in engines for name in segment.weights}
        weights = {name: size for segment in self.segments for name, size in segment.weights.items()}
        calls = _share(sum(len(segment.calls) for segment in engines), sum(len(segment.calls) for segment in self.segments))
        flops = {segment.name: segment.flops for segment in self.segments if segment.flops is not None}
        if len(flops) < len(self.segments):
            return Shares(calls, None, None)
        return Shares(
            calls,
            _share(sum(flops[segment.name] for segment in engines), sum(flops.values())),
            _share(sum(size for name, size in weights.items() if name in held), sum(weights.values())),
        )

    def fix(self, rejection: Rejection) -> str:
        """What a user can do about a rejection."""
        return fix_of(rejection)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, with shares, sums and a fix for each rejection."""
        record = asdict(self)
        record["shares"] = asdict(self.shares)
        for entry, segment in zip(record["segments"], self.segments, strict=True):
            entry["weight_bytes"], entry["border_bytes"] = segment.weight_bytes, segment.border_bytes
        for entry, rejection in zip(record["rejections"], self.rejections, strict=True):
            entry["fix"] = fix_of(rejection)
        return record

    def to_json(self) -> str:
        """The report as JSON text."""
        return json.dumps(self.to_dict(), indent=1)

    def to_dot(self) -> str:
        """The segments and what flows between them in the language of Graphviz."""
        return to_dot(self)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Writes one page that draws the graph: a room per segment, folded by module, with the reasons. It loads nothing from elsewhere."""
        Path(path).write_text(to_page(self), encoding="utf-8")

    def __str__(self) -> str:
        return to_table(self)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
