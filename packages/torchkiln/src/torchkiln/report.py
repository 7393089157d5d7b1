"""What a compilation did: segments in order, reasons for what stays in PyTorch, times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from torchkiln_core import Rejection
from torchkiln_core.partition import SegmentKind


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
    """

    name: str
    kind: SegmentKind
    calls: tuple[str, ...]
    layers: int = 0
    plan_bytes: Mapping[str, int] | None = None
    build_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """A compilation.

    Attributes:
        segments: In call order.
        rejections: Why calls stay in PyTorch, in graph order.
        engine: What runs the engine segments: ``"tensorrt"`` or ``"reference"``.
        stage_ms: Time of each stage in milliseconds.
    """

    segments: tuple[SegmentReport, ...]
    rejections: tuple[Rejection, ...]
    engine: str
    stage_ms: Mapping[str, float]

    def __str__(self) -> str:
        kinds = Counter(segment.kind for segment in self.segments)
        lines = [f"{kinds['engine']} engine segment(s) on {self.engine}, {kinds['torch']} in PyTorch"]
        for segment in self.segments:
            common = ", ".join(f"{name} x{count}" for name, count in Counter(segment.calls).most_common(6))
            detail = f", {segment.layers} layers" if segment.kind == "engine" else ""
            lines.append(f"  {segment.name}: {len(segment.calls)} calls{detail} ({common})")
            for target, size in (segment.plan_bytes or {}).items():
                lines.append(f"    plan for {target}: {size / 1e6:.1f} MB, built in {segment.build_ms:.0f} ms")
        if self.rejections:
            lines.append(f"{len(self.rejections)} call(s) stay in PyTorch:")
            lines += [f"  {rejection}" for rejection in self.rejections]
        if self.stage_ms:
            lines.append("time: " + ", ".join(f"{stage} {ms:.0f} ms" for stage, ms in self.stage_ms.items()))
        return "\n".join(lines)
