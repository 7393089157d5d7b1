"""What is decomposed, and what keeps its form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lowering_programs import ELEMENTARY, Oracle, aten, capture, guard_state, run, targets, whole
from torch import nn
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from torchkiln_core.errors import LoweringError
from torchkiln_core.program import InputKind
from torchkiln_lowering import AtenLowering, Pipeline, standard_decompositions
from torchkiln_lowering.trace import _refusing_guards


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.drop = nn.Dropout()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.drop(self.norm(self.linear(x))).reshape(x.shape[0], 2, 4)
        return F.silu(y) + F.scaled_dot_product_attention(y, y, y)


@pytest.mark.parametrize("take", [whole, capture])
@pytest.mark.parametrize("dynamic", [None, ({0: Dim("n", min=2, max=64)},)], ids=["static", "dynamic"])
def test_network(take: Any, dynamic: Any) -> None:
    net = Net()
    program = take(net, (torch.randn(3, 8),), dynamic)
    before = str(program.module.graph)
    guards = guard_state(program)
    lowered = AtenLowering().lower(program, Oracle())
    assert str(program.module.graph) == before
    assert guard_state(program) == guards
    assert lowered.inputs == program.inputs
    assert [node.target for node in lowered.module.graph.find_nodes(op="placeholder")] == [item.name for item in program.inputs]
    assert [item for item in lowered.inputs if item.kind is InputKind.WEIGHT]
    assert all(lowered.weights[name] is tensor for name, tensor in program.weights.items())
    assert all("val" in node.meta for node in lowered.module.graph.nodes if node.op != "output")
    assert all(call in Oracle().targets for call in targets(lowered) if isinstance(call, torch._ops.OpOverload) and "sym" not in str(call))
    x = torch.randn(3 if dynamic is None else 7, 8)
    torch.testing.assert_close(run(lowered, x)[0], net(x))


def test_accepted_calls_are_kept() -> None:
    program = whole(Net(), (torch.randn(3, 8),))
    kept = (
        aten.linear.default,
        aten.layer_norm.default,
        aten.dropout.default,
        aten.silu.default,
        aten.scaled_dot_product_attention.default,
        aten.reshape.default,
    )
    lowered = AtenLowering(pipeline=Pipeline()).lower(program, Oracle(*kept))
    assert targets(program) == targets(lowered)


def test_new_calls_say_where_they_come_from() -> None:
    lowered = AtenLowering().lower(whole(Net(), (torch.randn(3, 8),)), Oracle())
    for node in lowered.module.graph.find_nodes(op="call_function", target=aten.rsqrt.default):
        assert "self.norm" in node.meta["stack_trace"]
        assert "norm" in str(list(node.meta["nn_module_stack"].values())[-1])


def test_float64_keeps_its_form() -> None:
    program = whole(lambda x: F.layer_norm(F.softplus(x), [4]), (torch.randn(3, 4, dtype=torch.float64),))
    lowered = AtenLowering().lower(program, Oracle())
    assert targets(lowered) == [aten.softplus.default, aten.layer_norm.default]


def test_call_without_decomposition_stays() -> None:
    lowered = AtenLowering().lower(whole(lambda x: torch.lgamma(x) + 1, (torch.randn(3),)), Oracle())
    assert targets(lowered) == [aten.lgamma.default, aten.add.Tensor]


def test_random_calls_stay() -> None:
    class Noise(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.rand_like(x)
            return F.dropout(x, 0.5, training=True) + torch.rand_like(x) + torch.rand_like(x)

    program = whole(Noise(), (torch.randn(3),))
    lowered = AtenLowering().lower(program, Oracle())
    assert targets(lowered) == targets(program)
    torch.manual_seed(3)
    expected = run(program, torch.ones(3))
    torch.manual_seed(3)
    torch.testing.assert_close(run(lowered, torch.ones(3)), expected, rtol=0, atol=0)


def test_mutating_decomposition_becomes_functional() -> None:
    """Circular padding writes into slices of an empty tensor."""
    x = torch.randn(2, 3, 5)
    oracle = Oracle(aten.slice_scatter.default, aten.copy.default)
    lowered = AtenLowering().lower(whole(lambda x: F.pad(x, [1, 2], mode="circular"), (x,)), oracle)
    assert not any(call._schema.is_mutable for call in targets(lowered) if isinstance(call, torch._ops.OpOverload))
    torch.testing.assert_close(run(lowered, x)[0], F.pad(x, [1, 2], mode="circular"))


def test_equal_arguments_are_not_confused() -> None:
    """Two calls of one signature share a trace: ``f(x, x)`` must not stand for ``f(x, y)``."""
    x, y = torch.randn(3, 4), torch.randn(3, 4)

    def compute(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.logaddexp(x, x) - torch.logaddexp(x, y) * torch.logaddexp(y, x + 1)

    lowered = AtenLowering().lower(whole(compute, (x, y)), Oracle())
    torch.testing.assert_close(run(lowered, x, y)[0], compute(x, y))


def test_symbolic_integer_inputs() -> None:
    """The just-in-time path gives sizes as placeholders."""
    program = whole(lambda x, n: F.softplus(x.expand(n, 4)) * n, (torch.randn(1, 4), 3), ((None, Dim.DYNAMIC),))
    lowered = AtenLowering().lower(program, Oracle())
    assert aten.softplus.default not in targets(lowered)
    x = torch.randn(1, 4)
    torch.testing.assert_close(run(lowered, x, 5)[0], F.softplus(x.expand(5, 4)) * 5)


def test_strides_are_kept() -> None:
    """A channels-last result stays channels-last, since later views were traced with its strides."""
    x = torch.randn(2, 6, 3, 3).to(memory_format=torch.channels_last)

    def compute(x: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.group_norm(x, 2)).permute(0, 2, 3, 1).reshape(-1, 6)

    lowered = AtenLowering().lower(capture(compute, (x,)), Oracle())
    for node in lowered.module.graph.nodes:
        assert node.op == "output" or "val" in node.meta
    got = run(lowered, x)[0]
    torch.testing.assert_close(got, compute(x))


def test_users_table_by_value() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        return aten.add.Tensor(x, x)

    program = whole(torch.special.i0, (torch.randn(3),))
    table = standard_decompositions().extended({aten.special_i0.default: twice})
    (op,) = targets(program)
    table = standard_decompositions().extended({op: twice})
    assert targets(AtenLowering(decompositions=table).lower(program, Oracle())) == [aten.add.Tensor]
    assert targets(AtenLowering().lower(program, Oracle())) == [op]
    assert targets(AtenLowering(decompositions=table.without(op)).lower(program, Oracle())) == [op]


def test_users_failing_decomposition_is_named() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no luck")

    program = whole(torch.lgamma, (torch.randn(3),))
    table = standard_decompositions().extended({aten.lgamma.default: broken})
    with pytest.raises(LoweringError, match=r"decompose failed after passes \[\].*broken.*aten\.lgamma\.default.*no luck"):
        AtenLowering(decompositions=table).lower(program, Oracle())


def test_a_constant_that_a_decomposition_closes_over_keeps_its_shape() -> None:
    two = torch.tensor([2.0])
    table = standard_decompositions().extended({aten.lgamma.default: lambda x: aten.mul.Tensor(x, two)})
    lowered = AtenLowering(decompositions=table).lower(whole(torch.lgamma, (torch.randn(2, 3),)), Oracle(aten.full.default))
    [constant] = [node for node in lowered.module.graph.nodes if node.target in (aten.full.default, aten.mul.Tensor)][:1]
    assert constant.meta["val"].shape == (1,)
    x = torch.randn(2, 3)
    torch.testing.assert_close(run(lowered, x)[0], 2 * x)


def test_wrong_dtype_of_a_decomposition_keeps_the_call() -> None:
    table = standard_decompositions().extended({aten.lgamma.default: lambda x: aten._to_copy.default(x, dtype=torch.float16)})
    lowered = AtenLowering(decompositions=table).lower(whole(torch.lgamma, (torch.randn(3),)), Oracle())
    assert targets(lowered) == [aten.lgamma.default]


def test_a_decomposition_never_returns_the_input_for_a_copy() -> None:
    table = standard_decompositions().extended({aten.lgamma.default: lambda x: aten.view.default(x, [3])})
    lowered = AtenLowering(decompositions=table).lower(whole(torch.lgamma, (torch.randn(3),)), Oracle())
    x = torch.randn(3)
    assert run(lowered, x)[0].data_ptr() != x.data_ptr()


def test_one_call_in_torch_is_better_than_its_debris() -> None:
    """``roll`` is index arithmetic around one gather, which this oracle refuses."""
    lowered = AtenLowering().lower(
        whole(lambda x: torch.roll(x, 1, 0) + 1, (torch.randn(3, 4),)), Oracle(base=ELEMENTARY - {aten.cat.default})
    )
    assert targets(lowered) == [aten.roll.default, aten.add.Tensor]


@pytest.mark.skipif(not hasattr(ShapeEnv, "error_on_new_guards"), reason="this torch guards on the batch of a convolution")
def test_convolution_of_a_dynamic_batch() -> None:
    """The backend that eager picks depends on the batch size; decomposing must not guard on it."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3))
    program = capture(net, (torch.randn(2, 3, 9, 9),), ({0: Dim.DYNAMIC},))
    guards = guard_state(program)
    lowered = AtenLowering().lower(program, Oracle())
    assert guard_state(program) == guards
    assert set(targets(lowered)) <= Oracle().targets
    x = torch.randn(17, 3, 9, 9)
    torch.testing.assert_close(run(lowered, x)[0], net(x))


def test_guards_are_refused_in_every_torch() -> None:
    """The fallback for a torch without ``error_on_new_guards``."""
    program = whole(lambda x: x + 1, (torch.randn(4, 2),), (({0: Dim("n", min=2, max=64)},),))
    size = program.module.graph.output_node().args[0][0].meta["val"].shape[0]
    shapes = size.node.shape_env
    guards = guard_state(program)
    with _refusing_guards(shapes), pytest.raises(Exception, match="would guard on"):
        bool(size == 7)
    assert guard_state(program) == guards
    assert "_check_frozen" not in vars(shapes)


def test_comparisons_of_prims_with_numbers_run() -> None:
    """Of a rounded division only ``fmod`` stays: its comparisons with numbers do not."""
    more = (aten.floor.default, aten.reciprocal.default, aten.bitwise_xor.Tensor, aten.bitwise_and.Tensor, aten.ne.Scalar)
    x = torch.tensor([0.0, -0.0, 0.7, -0.7, 2.1, -5.0, 1e9, float("inf"), float("nan")])
    lowered = AtenLowering().lower(whole(lambda x: x // 0.7, (x,)), Oracle(*more))
    assert [call for call in targets(lowered) if "prims" in str(call)] == [torch.ops.prims.fmod.default]
    torch.testing.assert_close(run(lowered, x)[0], x // 0.7, rtol=0, atol=0, equal_nan=True)
