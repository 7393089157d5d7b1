"""``AtenLowering``: the lowering stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import torch.fx
from torch.utils._python_dispatch import _disable_current_modes

from torchkiln_core.options import LoweringOptions
from torchkiln_core.program import Program
from torchkiln_core.rejection import SupportOracle
from torchkiln_lowering.debug import value_check
from torchkiln_lowering.decompose import decompose, every_call
from torchkiln_lowering.decompositions.standard import standard_decompositions
from torchkiln_lowering.decompositions.table import Decompositions, Target
from torchkiln_lowering.lift import lift_attributes
from torchkiln_lowering.limits import LoweredOracle
from torchkiln_lowering.passes.autocast import autocast
from torchkiln_lowering.passes.context import DIMS, ORACLE
from torchkiln_lowering.passes.truncate import truncate_double
from torchkiln_lowering.pipeline import Pass, Pipeline
from torchkiln_lowering.registry import default_pipeline
from torchkiln_lowering.runner import Check, copied, no_check, run_passes
from torchkiln_lowering.snapshot import Snapshot

_OPTIONS = LoweringOptions()


_Kind = TypeVar("_Kind")


def _given(value: object, kind: type[_Kind], name: str) -> _Kind | None:
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name}: expected a {kind.__name__}, got {type(value).__name__}")
    return value


class AtenLowering:
    """Decomposes what converters refuse, then runs the passes.

    Args:
        options: Options of the stage.
        pipeline: The passes; without one, the process default as it is now.
        decompositions: The decompositions; without them, those of the options, else torchkiln's own over PyTorch's tables.

    Raises:
        TypeError: The options hold something else under ``decompositions``.
    """

    def __init__(
        self,
        options: LoweringOptions = _OPTIONS,
        pipeline: Pipeline | None = None,
        decompositions: Decompositions | None = None,
    ) -> None:
        self._options = options
        self._pipeline = pipeline or default_pipeline()
        given = decompositions or _given(options.decompositions, Decompositions, "decompositions")
        self._decompositions = given or standard_decompositions()

    @property
    def targets(self) -> frozenset[Target]:
        """The operators that a decomposition is there for which is not PyTorch's."""
        return frozenset(self._decompositions.rules)

    def oracle_of(self, converters: SupportOracle) -> SupportOracle:
        """What to ask of a program that was lowered for ``converters``: as they do, but it names the limit that kept a call whole."""
        return LoweredOracle(converters, self._decompositions)

    def _precision(self, program: Program) -> Pipeline:
        """The passes that change in which dtype the program computes, which the user asks for."""
        passes = []
        if self._options.truncate_double:
            passes.append(Pass("truncate_double", truncate_double))
        if self._options.autocast is not None:
            passes.append(Pass("autocast", autocast(self._options, program)))
        return Pipeline(tuple(passes))

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
        # torch.compile lowers in its fake mode, in which constants have no values.
        with _disable_current_modes():
            return self._lower(program, oracle)

    def _lower(self, program: Program, oracle: SupportOracle) -> Program:
        module = copied(program.module)
        module.meta |= {DIMS: program.dims, ORACLE: oracle}
        check = value_check(program) if self._options.lowering_debug else no_check
        run_passes(module, self._precision(program))
        self._expand(module, oracle, check, every_call)
        known = Snapshot(module.graph)
        _, changed = run_passes(module, self._pipeline, check)
        if changed:
            # A pass may have written operators that the oracle refuses.
            self._expand(module, oracle, check, known.changes(module.graph))
        for key in (DIMS, ORACLE):
            del module.meta[key]
        lowered = lift_attributes(dataclasses.replace(program, module=module))
        module.recompile()
        return lowered
