"""``AtenLowering``: the lowering stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch.fx

from torchkiln_core.options import LoweringOptions
from torchkiln_core.program import Program
from torchkiln_core.rejection import SupportOracle
from torchkiln_lowering.debug import value_check
from torchkiln_lowering.decompose import decompose, every_call
from torchkiln_lowering.decompositions.standard import standard_decompositions
from torchkiln_lowering.decompositions.table import Decompositions
from torchkiln_lowering.lift import lift_attributes
from torchkiln_lowering.passes.context import DIMS, ORACLE
from torchkiln_lowering.pipeline import Pass, Pipeline
from torchkiln_lowering.registry import default_pipeline
from torchkiln_lowering.runner import Check, copied, no_check, run_passes
from torchkiln_lowering.snapshot import Snapshot

_OPTIONS = LoweringOptions()


class AtenLowering:
    """Decomposes what converters refuse, then runs the passes.

    Args:
        options: Options of the stage.
        pipeline: The passes; without one, the process default as it is now.
        decompositions: The decompositions; without them, torchkiln's own over PyTorch's tables.
    """

    def __init__(
        self,
        options: LoweringOptions = _OPTIONS,
        pipeline: Pipeline | None = None,
        decompositions: Decompositions | None = None,
    ) -> None:
        self._options = options
        self._pipeline = default_pipeline() if pipeline is None else pipeline
        self._decompositions = standard_decompositions() if decompositions is None else decompositions

    def _expand(self, module: torch.fx.GraphModule, oracle: SupportOracle, check: Check, wanted: Callable[[torch.fx.Node], bool]) -> None:
        expand = Pass("decompose", lambda gm: decompose(gm.graph, oracle, self._decompositions, wanted))
        run_passes(module, Pipeline((expand,)), check)

    def lower(self, program: Program, oracle: SupportOracle) -> Program:
        """A program with the same inputs and results, in the operators that the oracle accepts where they can be reached.

        Constants that were folded, and tensors that a pass put into the module, are weights behind those of ``program``.

        ``program`` itself is not touched.

        Raises:
            LoweringError: A pass or a user's decomposition failed, or changed the program's signature or (in debug mode) its values.
        """
        module = copied(program.module)
        module.meta |= {DIMS: program.dims, ORACLE: oracle}
        check = value_check(program) if self._options.lowering_debug else no_check
        self._expand(module, oracle, check, every_call)
        known = Snapshot(module.graph)
        _, changed = run_passes(module, self._pipeline, check)
        if changed:
            # A pass may have written operators that the oracle refuses.
            self._expand(module, oracle, check, known.is_changed)
        for key in (DIMS, ORACLE):
            del module.meta[key]
        lowered = lift_attributes(dataclasses.replace(program, module=module))
        module.recompile()
        return lowered
