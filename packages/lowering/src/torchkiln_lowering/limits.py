"""``LoweredOracle``: why a call is neither converted nor decomposed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchkiln_core.call import OpCall
from torchkiln_core.rejection import Rejection, SupportOracle
from torchkiln_lowering.decompositions.table import Decompositions
from torchkiln_lowering.metadata import KEPT


@dataclass(frozen=True, slots=True)
class LoweredOracle:
    """What to ask of a lowered program: the converters, and of what they refuse also the decompositions.

    It refuses the same calls under the same rules; the message says too what kept its decomposition from standing for a call: a limit, or,
    where there is no converter to say what it expects, what lowering left in the call's metadata.
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
        if found is None:
            return None
        problem = self.decompositions.problem(call)
        if problem is None and call.target not in self.targets:
            problem = call.node.meta.get(KEPT)
        if problem is None:
            return found
        return dataclasses.replace(found, message=f"{found.message}; its decomposition {problem}")
