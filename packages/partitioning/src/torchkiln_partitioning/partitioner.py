"""``LevelPartitioner``: the stage as the frontend calls it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch.fx

from torchkiln_core.errors import PartitionError
from torchkiln_core.operators import OperatorSet
from torchkiln_core.options import PartitionOptions
from torchkiln_core.partition import Partition
from torchkiln_core.program import Program
from torchkiln_core.rejection import Rejection, SupportOracle
from torchkiln_partitioning.classify import Refusals, classify
from torchkiln_partitioning.collection import collection_paused
from torchkiln_partitioning.cost import DEFAULT_MODEL, CostModel
from torchkiln_partitioning.decision_table import publish
from torchkiln_partitioning.divide import Division, divide
from torchkiln_partitioning.draft import Draft, draft_segments
from torchkiln_partitioning.effects import calls_inside
from torchkiln_partitioning.executed_modules import find_executed, require_matches
from torchkiln_partitioning.levels import Kind
from torchkiln_partitioning.limits import beyond_limits
from torchkiln_partitioning.overrides import find_overridden, require_possible
from torchkiln_partitioning.payoff import Judge, Scope
from torchkiln_partitioning.placement import Placement, place
from torchkiln_partitioning.sizes import find_recipes
from torchkiln_partitioning.stitch import stitch
from torchkiln_partitioning.view import ProgramView, view_program

_DEFAULTS = PartitionOptions()


class LevelPartitioner:
    """Divides a program into the fewest segments.

    Args:
        options: Options of the stage.
        refused: Rejections by node name, rule ``build-failed``, of calls whose engine could not be built before.
        model: Estimates which engines pay.

    Raises:
        ValueError: An entry of ``torch_executed_ops`` is no operator.
    """

    def __init__(
        self, options: PartitionOptions = _DEFAULTS, refused: Mapping[str, Rejection] | None = None, model: CostModel = DEFAULT_MODEL
    ) -> None:
        if options.require_full_compilation:
            # When everything must be compiled, no engine is too small.
            options = dataclasses.replace(options, min_block_size=1, border_cost="off")
        self._options = options
        self._executed = OperatorSet("torch_executed_ops", options.torch_executed_ops)
        self._refused = dict(refused or {})
        self._model = model

    def partition(self, program: Program, oracle: SupportOracle) -> Partition:
        """Divides ``program`` by what ``oracle`` says of each call.

        Raises:
            PartitionError: ``require_full_compilation`` is set and a call stays in PyTorch, ``node_overrides`` wants a call in an engine
                that cannot run there, or the file of ``partition_report`` cannot be written.
            ValueError: An entry of ``torch_executed_modules`` matches no module of the program, or one of ``node_overrides`` no call.
        """
        with collection_paused():
            return stitch(*self.decide(program, oracle))

    def decide(self, program: Program, oracle: SupportOracle) -> tuple[Division, tuple[Draft, ...]]:
        """What ``partition`` does before it writes graphs."""
        with collection_paused():
            return self._decide(program, oracle)

    def _decide(self, program: Program, oracle: SupportOracle) -> tuple[Division, tuple[Draft, ...]]:
        view = view_program(program)
        recipes = find_recipes(view)
        overridden = find_overridden(view, self._options.node_overrides)
        refusals = Refusals(self._executed, self._executed_modules(view), self._refused, overridden)
        rejections = classify(view, recipes, oracle, refusals)
        require_possible(overridden, rejections)
        placement = place(view, recipes, rejections)
        judge = self._judge([call for call, kind in overridden.items() if kind is Kind.ENGINE])
        division, drafts = _divide(placement, judge)
        while refused := beyond_limits(division, drafts):
            require_possible(overridden, refused)
            placement = placement.without(refused)
            division, drafts = _divide(placement, judge)
        if self._options.require_full_compilation:
            _require_full(division.placement)
        if self._options.partition_report is not None:
            publish(judge.decisions, self._model, self._options.partition_report)
        return division, drafts

    def _executed_modules(self, view: ProgramView) -> dict[torch.fx.Node, str]:
        """The calls that ``torch_executed_modules`` keeps in PyTorch; a name may match in graphs of higher-order calls alone."""
        entries = self._options.torch_executed_modules
        if not entries:
            return {}
        operators = [view.nodes[position] for position in view.operators()]
        inner = [call for position in sorted(view.whole) for call, _ in calls_inside(view.nodes[position], view.program.module)]
        require_matches([*operators, *inner], entries)
        return find_executed(operators, entries)

    def _judge(self, forced: Sequence[int]) -> Judge:
        # A program that is one engine stays one, as its user wants it compiled.
        return Judge(self._options, forced, Scope(2, self._model.program_us), self._model)


class BodyPartitioner(LevelPartitioner):
    """Divides a graph that a higher-order call runs, again and again or instead of another.

    An engine must pay here even where it is the whole graph. Entries of ``torch_executed_modules`` that match none of its modules were
    meant for others; ``node_overrides`` name calls of the program around it, and a report file holds the numbers of that.
    """

    def __init__(
        self, options: PartitionOptions = _DEFAULTS, refused: Mapping[str, Rejection] | None = None, model: CostModel = DEFAULT_MODEL
    ) -> None:
        report = options.partition_report
        inside = dataclasses.replace(options, node_overrides=(), partition_report=None if isinstance(report, str) else report)
        super().__init__(inside, refused, model)

    def _executed_modules(self, view: ProgramView) -> dict[torch.fx.Node, str]:
        return find_executed([view.nodes[position] for position in view.operators()], self._options.torch_executed_modules)

    def _judge(self, forced: Sequence[int]) -> Judge:
        return Judge(self._options, forced, Scope(1, 0.0), self._model)


def _divide(placement: Placement, judge: Judge) -> tuple[Division, tuple[Draft, ...]]:
    division = divide(placement, judge)
    return division, draft_segments(division)


def _require_full(placement: Placement) -> None:
    rejections = [rejection for _, rejection in sorted(placement.rejections.items())]
    if rejections:
        lines = "".join(f"\n    {rejection}" for rejection in rejections)
        raise PartitionError(
            f"require_full_compilation: expected every call in an engine, but {len(rejections)} stay in PyTorch:{lines}",
            node=rejections[0].node,
            where=rejections[0].where,
            fix="register converters for these operators, change the model, or leave require_full_compilation off",
        )
