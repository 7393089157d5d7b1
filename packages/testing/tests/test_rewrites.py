"""``assert_rewrites`` and ``assert_keeps``: what they accept, and every way in which a pass can be wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx

from torchkiln_testing import assert_keeps, assert_rewrites

aten = torch.ops.aten
X = torch.tensor([-1.0, 2.0])


def double(x: torch.Tensor) -> torch.Tensor:
    return x + x


def to(target: Callable[..., Any], *rest: Any) -> Callable[[torch.fx.GraphModule], bool]:
    """A pass that makes every ``add`` a call of ``target``."""

    def change(gm: torch.fx.GraphModule) -> bool:
        nodes = gm.graph.find_nodes(op="call_function", target=aten.add.Tensor)
        for node in nodes:
            node.target, node.args = target, (node.args[0], *rest)
        return bool(nodes)

    return change


def test_a_right_pass() -> None:
    after = assert_rewrites(to(aten.mul.Tensor, 2), double, (X,), gone=(aten.add.Tensor,), made=(aten.mul.Tensor,))
    assert [node.target for node in after.graph.find_nodes(op="call_function", target=aten.mul.Tensor)] == [aten.mul.Tensor]
    assert_keeps(to(aten.mul.Tensor, 2), torch.exp, (X,))


def test_a_users_pass() -> None:
    def user(gm: torch.fx.GraphModule, sample_inputs: Any) -> torch.fx.GraphModule:
        assert torch.equal(sample_inputs[0], X)
        to(aten.mul.Tensor, 2)(gm)
        return gm

    assert_rewrites(user, double, (X,), gone=(aten.add.Tensor,))
    assert_keeps(user, torch.exp, (X,))


def test_constants_of_the_function() -> None:
    weight = torch.tensor([3.0, 4.0])
    assert_rewrites(to(aten.mul.Tensor, 2), lambda x: (x + x) * weight, (X,), gone=(aten.add.Tensor,))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (to(aten.mul.Tensor, 3), "not close"),
        (to(aten.to.dtype, torch.float64), "expected dtype"),
        (to(aten.unsqueeze.default, 0), "expected shape"),
        (to(aten.view.default, [2]), "not close"),
        (lambda gm: False, "expected a changed graph"),
    ],
    ids=["values", "dtype", "shape", "view", "nothing"],
)
def test_a_wrong_pass(change: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        assert_rewrites(change, double, (X,))


def test_a_result_that_becomes_a_view() -> None:
    with pytest.raises(AssertionError, match="share memory"):
        assert_rewrites(to(aten.view.default, [2]), lambda x: x + 0, (X,))


def test_promises() -> None:
    with pytest.raises(AssertionError, match="expected no aten"):
        assert_rewrites(to(aten.mul.Tensor, 2), lambda x: (x + x) * 2, (X,), gone=(aten.mul.Tensor,))
    with pytest.raises(AssertionError, match="expected aten"):
        assert_rewrites(to(aten.mul.Tensor, 2), double, (X,), made=(aten.exp.default,))


def test_keeping() -> None:
    with pytest.raises(AssertionError, match="expected the graph to stay"):
        assert_keeps(to(aten.mul.Tensor, 2), double, (X,))
    with pytest.raises(AssertionError, match="says that it changed"):
        assert_keeps(lambda gm: True, double, (X,))
