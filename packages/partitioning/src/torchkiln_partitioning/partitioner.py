"""``LevelPartitioner``: the stage as the frontend calls it."""

from __future__ import annotations

from collections.abc import Mapping

from torchkiln_core.errors import PartitionError
from torchkiln_core.options import PartitionOptions
from torchkiln_core.partition import Partition
from torchkiln_core.program import Program
from torchkiln_core.rejection import Rejection, SupportOracle
from torchkiln_partitioning.classify import Refusals, classify
from torchkiln_partitioning.divide import Division, divide, divide_with_minimum
from torchkiln_partitioning.draft import Draft, draft_segments
from torchkiln_partitioning.executed_ops import ExecutedOps
from torchkiln_partitioning.limits import beyond_limits
from torchkiln_partitioning.placement import Placement, place
from torchkiln_partitioning.sizes import find_recipes
from torchkiln_partitioning.stitch import stitch
from torchkiln_partitioning.view import view_program

_DEFAULTS = PartitionOptions()


class LevelPartitioner:
    """Divides a program into the fewest segments.

    Args:
        options: Options of the stage.
        refused: Rejections by node name, rule ``build-failed``, of calls whose engine could not be built before.

    Raises:
        ValueError: An entry of ``torch_executed_ops`` is no operator.
    """

    def __init__(self, options: PartitionOptions = _DEFAULTS, refused: Mapping[str, Rejection] | None = None) -> None:
        self._options = options
        self._refusals = Refusals(ExecutedOps(options.torch_executed_ops), options, dict(refused or {}))

    def partition(self, program: Program, oracle: SupportOracle) -> Partition:
        """Divides ``program`` by what ``oracle`` says of each call.

        Raises:
            PartitionError: ``require_full_compilation`` is set and a call stays in PyTorch.
            ValueError: An entry of ``torch_executed_modules`` matches no module of the program.
        """
        view = view_program(program)
        recipes = find_recipes(view)
        placement = place(view, recipes, classify(view, recipes, oracle, self._refusals))
        division, drafts = self._divide(placement)
        while refused := beyond_limits(division, drafts):
            placement = placement.without(refused)
            division, drafts = self._divide(placement)
        if self._options.require_full_compilation:
            _require_full(division.placement)
        return stitch(division, drafts)

    def _divide(self, placement: Placement) -> tuple[Division, tuple[Draft, ...]]:
        # When everything must be compiled, no engine is too small.
        if self._options.require_full_compilation:
            division = divide(placement)
        else:
            division = divide_with_minimum(placement, self._options.min_block_size)
        return division, draft_segments(division)


def _require_full(placement: Placement) -> None:
    rejections = [placement.rejections[node] for node in placement.view.nodes if node in placement.rejections]
    if rejections:
        lines = "".join(f"\n    {rejection}" for rejection in rejections)
        raise PartitionError(
            f"require_full_compilation: expected every call in an engine, but {len(rejections)} stay in PyTorch:{lines}",
            node=rejections[0].node,
            where=rejections[0].where,
            fix="register converters for these operators, change the model, or leave require_full_compilation off",
        )
