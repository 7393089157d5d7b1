"""What a program returns: inputs, constants, duplicates, views, nothing. Structure, values and aliasing stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lowering_programs import Oracle, capture, from_exported, run, whole
from torch import nn

from torchkiln_core.options import LoweringOptions
from torchkiln_lowering import AtenLowering


def _constant(x: torch.Tensor) -> Any:
    return torch.eye(3), torch.arange(3), x + 1


def _duplicates(x: torch.Tensor) -> Any:
    y = x + 1
    return y, y, y.view(-1), x, x


FORMS: dict[str, Callable[..., Any]] = {
    "inputs": lambda x: (x, x + 1),
    "only an input": lambda x: (x,),
    "constants": _constant,
    "duplicates": _duplicates,
    "views of an input": lambda x: (x.view(-1), x[0], x.t(), x.expand(2, 2, 3)),
    "views of each other": lambda x: ((y := x * 2), y[1:], y.t().t(), y.view(3, 2)),
    "copies": lambda x: (x.clone(), (x * 2).clone(), x.contiguous(), x.detach()),
    "detached": lambda x: ((x + 1).detach(), torch.ops.aten.alias(x * 1)),
    "equal calls": lambda x: (x + 1, x + 1, (x + 1) * 2),
}


def _sharing(values: tuple[torch.Tensor, ...]) -> list[list[bool]]:
    addresses = [value.untyped_storage().data_ptr() for value in values]
    return [[left == right for right in addresses] for left in addresses]


@pytest.mark.parametrize("take", [whole, capture])
@pytest.mark.parametrize("form", FORMS)
def test_results(form: str, take: Any) -> None:
    x = torch.arange(6.0).view(2, 3)
    # The debug mode checks every pass for itself.
    program = take(FORMS[form], (x,))
    lowered = AtenLowering(LoweringOptions(lowering_debug=True)).lower(program, Oracle())
    want, got = FORMS[form](x), run(lowered, x)
    assert len(want) == len(got)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs)
        assert mine.stride() == theirs.stride()
    assert _sharing((x, *got)) == _sharing((x, *run(program, x)))


def test_unused_inputs_and_empty_graphs() -> None:
    lowered = AtenLowering().lower(whole(lambda x, y: (y,), (torch.ones(2), torch.zeros(3))), Oracle())
    assert [item.name for item in lowered.inputs] == [str(node.target) for node in lowered.module.graph.find_nodes(op="placeholder")]
    assert len(lowered.inputs) == 2
    y = torch.zeros(3)
    assert run(lowered, torch.ones(2), y)[0] is y
    nothing = AtenLowering().lower(whole(lambda x: (), (torch.ones(2),)), Oracle())
    assert run(nothing, torch.ones(2)) == ()


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.norm(x) * self.count


def test_a_new_value_of_a_buffer_is_a_result_of_its_own() -> None:
    exported = torch.export.export(Counter().eval(), (torch.randn(2, 3),)).run_decompositions({})
    (mutated,) = exported.graph_signature.buffers_to_mutate.values()
    assert mutated == "count"
    lowered = AtenLowering().lower(from_exported(exported), Oracle())
    first, second = run(lowered, torch.ones(2, 3)), run(lowered, torch.ones(2, 3))
    assert int(first[0]) == int(second[0]) == 1
    assert first[0].data_ptr() != lowered.weights["b_count"].data_ptr()
