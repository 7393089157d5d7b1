"""``Program``: a flat, functional ATen graph with its weights by name. Every stage after capture reads it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.fx

from torchkiln_core.spec import DimRange


class InputKind(enum.Enum):
    """What a placeholder of a program stands for."""

    USER = "user"
    """An argument of the call (a tensor or a symbolic integer), or a buffer that the graph mutates."""
    WEIGHT = "weight"
    """A parameter, buffer or lifted constant that the graph only reads: part of the network, never an input of an engine."""


@dataclass(frozen=True, slots=True)
class ProgramInput:
    """A placeholder: node name, kind and, for weights and mutated buffers, the qualified name in the user's module (``conv.weight``)."""

    name: str
    kind: InputKind
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """A flat functional graph.

    Attributes:
        module: Placeholders in the order of ``inputs``; one output node that returns a flat tuple. Every node has ``meta["val"]``
            (fake tensors and symbolic integers of one fake mode). No operator mutates or aliases into its arguments.
        inputs: One per placeholder, in order.
        weights: The live tensors of the ``WEIGHT`` inputs by placeholder name, held by reference.
        dims: Range of each free symbol by name (``s0``).
    """

    module: torch.fx.GraphModule
    inputs: tuple[ProgramInput, ...]
    weights: Mapping[str, torch.Tensor]
    dims: Mapping[str, DimRange]

    @property
    def user_inputs(self) -> tuple[str, ...]:
        """Names of the placeholders that every call supplies."""
        return tuple(item.name for item in self.inputs if item.kind is InputKind.USER)
