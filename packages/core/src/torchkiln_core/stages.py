"""The stages of the compiler, one method each. The frontend composes them."""

from __future__ import annotations

from typing import Protocol

import torch

from torchkiln_core.network import Network
from torchkiln_core.partition import Partition, Segment
from torchkiln_core.plan import Plan
from torchkiln_core.program import Program
from torchkiln_core.rejection import SupportOracle


class Lowering(Protocol):
    """Program to a program of the operators that converters know."""

    def lower(self, program: Program, oracle: SupportOracle) -> Program:
        """Raises ``LoweringError``."""
        ...


class Partitioner(Protocol):
    """Program to segments."""

    def partition(self, program: Program, oracle: SupportOracle) -> Partition:
        """Raises ``PartitionError``."""
        ...


class SegmentConverter(Protocol):
    """Engine segment to network."""

    def convert(self, segment: Segment, program: Program) -> Network:
        """Weights are taken from ``program.weights`` by reference. Raises ``ConversionError``."""
        ...


class PlanBuilder(Protocol):
    """Network to plan."""

    def build(self, network: Network) -> Plan:
        """Raises ``BuildError``."""
        ...


class Engine(Protocol):
    """Something that runs a segment: a loaded plan on a GPU, or the record itself."""

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Raises ``ShapeOutOfProfile`` when an input's size is outside what was compiled."""
        ...


class PlanLoader(Protocol):
    """Plan to engine."""

    def load(self, plan: Plan) -> Engine:
        """Raises ``PlanTargetMismatch``."""
        ...


class PlanCache(Protocol):
    """Plans by key."""

    def get(self, key: str) -> Plan | None:
        """The plan under ``key``, if there is one."""
        ...

    def put(self, plan: Plan) -> None:
        """Keeps a plan under ``plan.key``."""
        ...
