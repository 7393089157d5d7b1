"""``LoweredOracle``: why a call is neither converted nor decomposed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchkiln_core.call import OpCall
from torchkiln_core.rejection import Rejection, SupportOracle
from torchkiln_lowering.decompositions.table import Decompositions


@dataclass(frozen=True, slots=True)
class LoweredOracle:
    """What to ask of a lowered program: the converters, and of what they refuse also the decompositions.

    It refuses the same calls under the same rules; the message says too which limit of its decomposition kept a call whole.
    """

    converters: SupportOracle
    decompositions: Decompositions

    @property
    def targets(self) -> frozenset[Callable[..., Any]]:
        """Operators that have a converter."""
        return self.converters.targets

    def reject(self, call: OpCall) -> Rejection | None:
        """Why ``call`` stays in PyTorch, or ``None`` when it can be converted."""
        found = self.converters.reject(call)
        problem = None if found is None else self.decompositions.problem(call)
        if found is None or problem is None:
            return found
        return dataclasses.replace(found, message=f"{found.message}; its decomposition {problem}")
