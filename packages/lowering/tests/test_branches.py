"""Branches of ``torch.cond`` are lowered where the oracle takes the call then, and else stay as they were captured."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lowering_programs import Oracle, guard_state, run, targets, whole

from torchkiln_core.call import OpCall
from torchkiln_core.errors import LoweringError
from torchkiln_core.options import LoweringOptions
from torchkiln_core.rejection import Rejection
from torchkiln_lowering import AtenLowering, Pass, Pipeline, standard_pipeline

aten = torch.ops.aten
X = torch.linspace(-1.0, 2.0, 12).reshape(4, 3)
ROWS = (({0: torch.export.Dim("rows", min=2, max=9)},),)


class Branches(Oracle):
    """Takes a call where it takes all that its branches call."""

    def reject(self, call: OpCall) -> Rejection | None:
        if call.target is not torch.ops.higher_order.cond:
            return super().reject(call)
        owner = call.node.graph.owning_module
        for branch in (owner.get_submodule(str(node.target)) for node in call.node.args[1:3]):
            for node in branch.graph.nodes:
                if node.op == "call_function" and "getitem" not in str(node.target) and self.reject(OpCall.from_node(node)) is not None:
                    return Rejection.of(call, "requires", str(node.target))
        return None


def branching(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda t: torch.nn.functional.softplus(t).clone(), lambda t: t + torch.ones(3), (x,)) * 2


def nesting(x: torch.Tensor) -> torch.Tensor:
    def inner(t: torch.Tensor) -> torch.Tensor:
        return torch.cond(t.mean() > 1, lambda u: torch.logaddexp(u, u), lambda u: u + 1, (t,))

    return torch.cond(x.sum() > 0, inner, lambda t: t - 1, (x,))


def operators_inside(module: torch.fx.GraphModule) -> set[Any]:
    """What the graphs call that are attributes of a module."""
    found: set[Any] = set()
    for branch in (child for child in module.children() if isinstance(child, torch.fx.GraphModule)):
        found |= {node.target for node in branch.graph.nodes if node.op == "call_function"} | operators_inside(branch)
    return found


@pytest.mark.parametrize("shapes", [None, ROWS])
@pytest.mark.parametrize(("function", "refused"), [(branching, aten.softplus.default), (nesting, aten.logaddexp.default)])
def test_branches_are_lowered(function: Any, refused: Any, shapes: Any) -> None:
    program = whole(function, (X,), shapes)
    before, guards = operators_inside(program.module), guard_state(program)
    lowered = AtenLowering(LoweringOptions(lowering_debug=True)).lower(program, Branches(aten.sum.default, aten.mean.default))
    assert refused in before
    assert refused not in operators_inside(lowered.module)
    assert operators_inside(program.module) == before
    assert guard_state(program) == guards
    assert torch.ops.higher_order.cond in targets(lowered)
    assert [item.name for item in lowered.inputs if item.kind.value == "user"] == list(program.user_inputs)
    for x in (X, -X, X * 5):
        torch.testing.assert_close(run(lowered, x), run(program, x))


def test_branches_of_which_one_is_refused_both_stay() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, torch.nn.functional.softplus, lambda t: torch.special.i0(t) + 1, (x,))

    program = whole(function, (X,))
    lowered = AtenLowering().lower(program, Branches())
    for name in ("true_graph_0", "false_graph_0"):
        assert lowered.module.get_submodule(name) is program.module.get_submodule(name)


def test_branches_that_cannot_be_lowered_stay() -> None:
    def fail(module: torch.fx.GraphModule) -> bool:
        if any(node.target is aten.exp.default for node in module.graph.nodes):
            raise LoweringError("no way to lower exp")
        return False

    program = whole(lambda x: torch.cond(x.sum() > 0, lambda t: t.exp(), lambda t: t.sin(), (x,)), (X,))
    pipeline = Pipeline((*standard_pipeline().passes, Pass("failing", fail)))
    lowered = AtenLowering(pipeline=pipeline).lower(program, Branches(aten.sin.default))
    assert lowered.module.true_graph_0 is program.module.true_graph_0
