"""Options that change in which dtype a program computes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lowering_programs import Oracle, aten, capture, run, targets, whole
from torch import nn

from torchkiln_core.errors import LoweringError
from torchkiln_core.options import LoweringOptions, Options
from torchkiln_lowering import AtenLowering, standard_decompositions

LOW = torch.bfloat16


class Everything:
    targets: frozenset[Any] = frozenset()

    def reject(self, call: Any) -> None:
        return None


def lowered(program: Any, **options: Any) -> Any:
    return AtenLowering(LoweringOptions(**options)).lower(program, Everything())


def dtypes(program: Any, target: Any) -> set[torch.dtype]:
    return {node.meta["val"].dtype for node in program.module.graph.find_nodes(op="call_function", target=target)}


class Doubles(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4).double()

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> Any:
        y = torch.softmax(self.linear(x), 1) + torch.ones(4, dtype=torch.float64)
        return y, y.sum(dtype=torch.float64), n + 1, x, y.float(), y.double()


def test_truncated_doubles() -> None:
    net, inputs = Doubles().eval(), (torch.randn(3, 4, dtype=torch.float64), torch.tensor([1]))
    program = lowered(capture(net, inputs), truncate_double=True)
    computed = [node for node in program.module.graph.nodes if node.op == "call_function" and node.target is not aten._to_copy.default]
    assert all(node.meta["val"].dtype != torch.float64 for node in computed)
    got, want = run(program, *inputs), net(*inputs)
    assert [value.dtype for value in got] == [value.dtype for value in want]
    assert got[3] is inputs[0]
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    assert not torch.equal(got[0], want[0])


def test_doubles_stay_by_default() -> None:
    net, inputs = Doubles().eval(), (torch.randn(3, 4, dtype=torch.float64), torch.tensor([1]))
    torch.testing.assert_close(run(lowered(capture(net, inputs)), *inputs)[0], net(*inputs)[0], rtol=0, atol=1e-15)


def test_programs_without_doubles_are_not_touched() -> None:
    program = whole(lambda x: torch.exp(x) + 1, (torch.randn(3),))
    assert targets(lowered(program, truncate_double=True)) == targets(program)


def test_truncation_refuses_complex_numbers() -> None:
    program = whole(lambda x: torch.view_as_real(torch.view_as_complex(x) * 2), (torch.randn(3, 2, dtype=torch.float64),))
    with pytest.raises(LoweringError, match="truncate_double: expected real numbers, got complex128"):
        lowered(program, truncate_double=True)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
        self.norm = nn.LayerNorm(8)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(F.relu(self.first(x))).flatten(2).transpose(1, 2)
        y = self.norm(x)
        y = F.scaled_dot_product_attention(y, y, y) + self.linear(y)
        return torch.softmax(y.exp().pow(0.5), -1).mean(1)


IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_autocast_by_rule() -> None:
    net = Net().eval()
    program = lowered(whole(net, (IMAGE,)), autocast=LOW)
    for target in (aten.conv2d.default, aten.linear.default, aten.scaled_dot_product_attention.default, aten.relu.default, aten.add.Tensor):
        assert dtypes(program, target) == {LOW}, target
    for target in (aten.layer_norm.default, aten.softmax.int, aten.exp.default, aten.pow.Tensor_Scalar, aten.mean.dim):
        assert dtypes(program, target) == {torch.float32}, target
    (got,) = run(program, IMAGE)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, net(IMAGE), rtol=0.1, atol=0.02)
    # The first convolution hands its result to the second one as it is.
    (relu,) = program.module.graph.find_nodes(op="call_function", target=aten.relu.default)
    assert relu.args[0].target is aten.conv2d.default
    assert [user.target for user in relu.users] == [aten.conv2d.default]


def test_autocast_keeps_what_is_already_low() -> None:
    program = whole(lambda x: (x @ x.t()).float() @ x.float(), (torch.randn(3, 3).half(),))
    got = lowered(program, autocast=LOW)
    assert dtypes(got, aten.matmul.default) == {torch.float16, LOW}


def test_exclusions() -> None:
    program = whole(Net().eval(), (IMAGE,))
    got = lowered(program, autocast=LOW, autocast_excluded_nodes=("conv2d*",), autocast_excluded_ops=("aten.linear",))
    assert dtypes(got, aten.conv2d.default) == dtypes(got, aten.linear.default) == {torch.float32}
    assert dtypes(got, aten.scaled_dot_product_attention.default) == {LOW}
    for operators in ((aten.conv2d.default, "aten.linear.default"), (aten.conv2d, "torch.ops.aten.linear")):
        got = lowered(program, autocast=LOW, autocast_excluded_ops=operators)
        assert dtypes(got, aten.conv2d.default) == dtypes(got, aten.linear.default) == {torch.float32}
    with pytest.raises(ValueError, match=r"autocast_excluded_ops: no operator 'aten\.linnear'; did you mean 'aten\.linear'"):
        lowered(program, autocast=LOW, autocast_excluded_ops=("aten.linnear",))


def test_calibration_keeps_large_results_wide() -> None:
    program = whole(lambda x: (x @ x, (x * 1000) @ x), (torch.eye(4),))
    got = lowered(program, autocast=LOW, autocast_max_output=100, autocast_calibration=((torch.eye(4),),))
    assert dtypes(got, aten.matmul.default) == {LOW, torch.float32}
    with pytest.raises(LoweringError, match="expected 1 flat inputs"):
        lowered(program, autocast=LOW, autocast_calibration=((),))
    with pytest.raises(LoweringError, match="does not run on these inputs"):
        lowered(program, autocast=LOW, autocast_calibration=((torch.ones(2, 3),),))
    captured_by_torch_compile = dataclasses.replace(whole(torch.nn.Linear(2, 2), (torch.eye(2),)), weights={})
    with pytest.raises(LoweringError, match=r"the weights have no values yet(?s:.*)fix: calibrate ahead of time"):
        lowered(captured_by_torch_compile, autocast=LOW, autocast_calibration=((torch.eye(2),),))


def test_options() -> None:
    with pytest.raises(ValueError, match="autocast: expected"):
        LoweringOptions(autocast=torch.float64)
    with pytest.raises(ValueError, match="autocast_max_output"):
        LoweringOptions(autocast_max_output=0)
    assert Options.from_keywords({"autocast": torch.float16, "truncate_double": True}).lowering.autocast == torch.float16


def test_decompositions_by_option() -> None:
    program = whole(F.softplus, (torch.randn(3),))
    options = LoweringOptions(decompositions=standard_decompositions().without(aten.softplus.default))
    assert targets(AtenLowering(options).lower(program, Oracle())) == [aten.softplus.default]
    assert aten.softplus.default not in targets(AtenLowering().lower(program, Oracle()))
    with pytest.raises(TypeError, match="decompositions: expected a Decompositions"):
        AtenLowering(LoweringOptions(decompositions=3))
