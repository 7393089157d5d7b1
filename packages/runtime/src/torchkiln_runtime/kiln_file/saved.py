"""What a ``.kiln`` file holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.fx

from torchkiln_core import InternalError, Network, Plan, Rejection


@dataclass(frozen=True, slots=True)
class SavedSegment:
    """One part of a program.

    Attributes:
        name: The submodule that the stitched graph calls, such as ``engine_0``; an identifier.
        kind: Where it runs.
        calls: Operators of the segment in order, as users write them.
        network: What the engine is built from; ``None`` when ``kind`` is ``"torch"``.
        graph: What PyTorch runs; ``None`` when ``kind`` is ``"engine"``.
        plans: Serialized engines for one or more targets; empty when ``kind`` is ``"torch"``.
    """

    name: str
    kind: Literal["engine", "torch"]
    calls: tuple[str, ...]
    network: Network | None
    graph: torch.fx.GraphModule | None
    plans: tuple[Plan, ...]


@dataclass(frozen=True, slots=True)
class SavedProgram:
    """A compiled program, without its engines.

    Attributes:
        stitched: Placeholders, calls of one submodule per segment, ``getitem``, arithmetic of symbolic integers, and the
            output. Its submodules are not saved with it: in a loaded program those of torch segments are their ``graph``, those of
            engine segments an ``UnboundSegment``.
        segments: In call order.
        weights: Tensors that are needed at run time (weights of torch segments, mutated buffers), by name.
        signature: The calling convention, as JSON data.
        rejections: Why calls stay in PyTorch, in graph order.
    """

    stitched: torch.fx.GraphModule
    segments: tuple[SavedSegment, ...]
    weights: Mapping[str, torch.Tensor]
    signature: Mapping[str, Any]
    rejections: tuple[Rejection, ...]


class UnboundSegment(torch.nn.Module):
    """Stands in a loaded stitched graph where an engine belongs."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Refuses to run.

        Raises:
            InternalError: Always.
        """
        raise InternalError(f"segment {self.name}: no engine is bound; replace the submodule {self.name!r} of the stitched graph first")
