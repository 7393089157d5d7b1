"""The division of a program: segments in call order, and every reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch.fx

from torchkiln_core.program import Program
from torchkiln_core.rejection import Rejection

SegmentKind = Literal["engine", "torch"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a program that runs in one place.

    Attributes:
        name: ``engine_0``, ``torch_1``, ...; also the submodule's name in ``Partition.module``.
        kind: Where it runs.
        module: Placeholders ``inputs`` then ``weights``, under those names; returns a flat tuple ``outputs``.
        inputs: Program values that cross the border inwards. Tensors only when ``kind`` is ``"engine"``.
        weights: Placeholder names of the program's weights that the segment reads.
        outputs: Program values that cross the border outwards.
        calls: Operators of the segment in order, as users write them.
    """

    name: str
    kind: SegmentKind
    module: torch.fx.GraphModule
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    outputs: tuple[str, ...]
    calls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Partition:
    """A divided program.

    Attributes:
        program: What was divided.
        module: The stitched graph. Placeholders: the program's user inputs in order, then ``weights``. It calls one submodule per
            segment, engine segments without their weights and torch segments with them, and returns the program's flat outputs.
        weights: Names of the weights that the stitched graph takes (those that torch segments read or that are outputs).
        segments: In call order.
        rejections: Why calls stay in PyTorch, in graph order.
    """

    program: Program
    module: torch.fx.GraphModule
    weights: tuple[str, ...]
    segments: tuple[Segment, ...]
    rejections: tuple[Rejection, ...]
