"""Our decompositions against eager: values, dtypes, static and dynamic shapes, edge values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lowering_programs import FLOATS, Oracle, aten, guard_state, run, targets, whole
from torch.export import Dim

from torchkiln_lowering import AtenLowering

INF = float("inf")
EDGES = torch.tensor([[0.0, -0.0, 1.0, -1.0, 1e-4, -1e-4, 88.0, -88.0, 30.0, -30.0, INF, -INF]])


@dataclass(frozen=True)
class Row:
    """A function, its inputs, and the operator that must be gone."""

    name: str
    function: Any
    inputs: Any
    gone: Any
    dynamic: bool = True
    leftovers: frozenset[Any] = field(default_factory=frozenset)


def _wide(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * 3 + 1


W = torch.tensor([-1.0, -0.5, 0.0, 0.25, 1.0, 2.0])
ROWS = (
    Row("layer_norm", lambda x: F.layer_norm(x, [6], W.to(x.dtype), W.to(x.dtype)), (_wide(4, 5, 6),), aten.native_layer_norm.default),
    Row("layer_norm plain", lambda x: F.layer_norm(x, [5, 6]), (_wide(4, 5, 6),), aten.native_layer_norm.default),
    Row("group_norm", lambda x: F.group_norm(x, 3, W.to(x.dtype), W.to(x.dtype)), (_wide(4, 6, 3, 2),), aten.native_group_norm.default),
    Row("rms_norm", lambda x: F.rms_norm(x, [6], W.to(x.dtype)), (_wide(4, 6),), aten.rms_norm.default),
    Row(
        "batch_norm",
        lambda x: F.batch_norm(x, W.to(x.dtype), W.abs().to(x.dtype), W.to(x.dtype)),
        (_wide(4, 6, 3),),
        aten.batch_norm.default,
    ),
    Row("instance_norm", F.instance_norm, (_wide(4, 6, 5),), aten._native_batch_norm_legit.no_stats),
    Row("var", lambda x: torch.var(x, dim=1), (_wide(4, 6),), aten.var.correction),
    Row("var all", lambda x: torch.var(x, correction=3), (_wide(1, 6),), aten.var.correction, dynamic=False),
    Row("var_mean", lambda x: torch.var_mean(x, dim=[-1], keepdim=True), (_wide(4, 6),), aten.var_mean.correction),
    Row("std", lambda x: torch.std(x, dim=1, correction=0), (_wide(4, 6),), aten.std.correction),
    Row("softmax", lambda x: torch.softmax(x, 1), (torch.cat([EDGES[:, :10], -EDGES[:, :10]]),), aten._softmax.default),
    Row("softmax of -inf", lambda x: torch.softmax(x, 1), (torch.full((2, 3), -INF),), aten._softmax.default),
    Row("log_softmax", lambda x: torch.log_softmax(x, 1), (_wide(4, 6) * 20,), aten._log_softmax.default),
    Row(
        "logsumexp",
        lambda x: torch.logsumexp(x, 1),
        (torch.tensor([[1e4, 1e4], [-INF, -INF], [INF, 1.0], [-INF, 2.0]]),),
        aten.logsumexp.default,
    ),
    Row("logsumexp two", lambda x: torch.logsumexp(x, [0, -1], keepdim=True), (_wide(4, 5, 6),), aten.logsumexp.default),
    Row("log1p", torch.log1p, (torch.cat([EDGES.clamp_min(-1), EDGES.clamp_min(-1) / 2]),), aten.log1p.default),
    Row("expm1", torch.expm1, (torch.cat([EDGES, EDGES / 2]),), aten.expm1.default),
    Row("softplus", F.softplus, (torch.cat([EDGES, EDGES / 2]),), aten.softplus.default),
    Row("softplus beta", lambda x: F.softplus(x, beta=0.5, threshold=3), (torch.cat([EDGES, EDGES / 2]),), aten.softplus.default),
    Row("log_sigmoid", F.logsigmoid, (torch.cat([EDGES, EDGES / 2]),), aten.log_sigmoid_forward.default),
    Row("mish", F.mish, (torch.cat([EDGES[:, :10], EDGES[:, :10] / 2]),), aten.mish.default),
    Row("gelu", F.gelu, (torch.cat([EDGES[:, :10], EDGES[:, :10] / 9]),), aten.gelu.default),
    Row("gelu tanh", lambda x: F.gelu(x, approximate="tanh"), (torch.cat([EDGES[:, :6], EDGES[:, :6] / 9]),), aten.gelu.default),
    Row("exp2", torch.exp2, (torch.cat([EDGES, EDGES / 2]),), aten.exp2.default),
    Row("hypot", torch.hypot, (torch.cat([EDGES, EDGES]) * 9, torch.cat([EDGES, EDGES.flip(1)])), aten.hypot.default),
    Row("logaddexp", torch.logaddexp, (torch.cat([EDGES, EDGES]), torch.cat([EDGES, -EDGES])), aten.logaddexp.default),
)
TOLERANCE = {torch.float32: (2e-6, 2e-6), torch.float16: (2e-3, 1e-4), torch.bfloat16: (1.6e-2, 1e-4)}


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_equals_eager(row: Row, dynamic: bool, dtype: torch.dtype) -> None:
    if dynamic and not row.dynamic:
        pytest.skip("the whole tensor is reduced: nothing dynamic to test")
    inputs = tuple(value.to(dtype) for value in row.inputs)
    shapes = None if not dynamic or inputs[0].shape[0] == 1 else tuple({0: Dim("n", min=2, max=64)} for _ in inputs)
    program = whole(row.function, inputs, (shapes,) if shapes else None)
    guards = guard_state(program)
    lowered = AtenLowering().lower(program, Oracle())
    assert guard_state(program) == guards
    assert row.gone not in targets(lowered)
    assert [call for call in targets(lowered) if isinstance(call, torch._ops.OpOverload) and call not in Oracle().targets | SIZES] == []
    if shapes:
        inputs = tuple(torch.cat([value, value]) for value in inputs)
    relative, absolute = TOLERANCE[dtype]
    # Half results are compared with exact ones: some eager kernels round their statistics to half.
    exact = row.function(*(value if dtype == torch.float32 else value.double() for value in inputs))
    expected = tuple(value.to(dtype) for value in (exact if isinstance(exact, tuple) else (exact,)))
    got = run(lowered, *inputs)
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=relative, atol=absolute, equal_nan=True)


SIZES = frozenset({aten.sym_size.int})


@pytest.mark.parametrize("function", [torch.log1p, torch.expm1, F.softplus, F.logsigmoid], ids=lambda function: function.__name__)
def test_keeps_every_digit(function: Any) -> None:
    """Relative error of a few units in the last place against fp64, also where the naive formula rounds to 0."""
    x = torch.cat([-torch.logspace(-6, 1.2, 50), torch.logspace(-6, 1.2, 50)])
    x = x.clamp_min(-0.99) if function is torch.log1p else x
    lowered = AtenLowering().lower(whole(function, (x,)), Oracle())
    exact = function(x.double())
    (got,) = run(lowered, x)
    assert ((got.double() - exact) / exact).abs().max() < 1e-6


def test_half_statistics_do_not_overflow() -> None:
    x = (torch.randn(2, 64) * 900).half()
    lowered = AtenLowering().lower(whole(lambda x: F.layer_norm(x, [64]), (x,)), Oracle())
    (got,) = run(lowered, x)
    torch.testing.assert_close(got.double(), F.layer_norm(x.double(), [64]), rtol=2e-3, atol=2e-3)


def test_statistics_that_are_read_come_from_torch() -> None:
    """``native_layer_norm`` whose mean is read: our rule does not fit, PyTorch's does."""
    x = _wide(4, 6)
    lowered = AtenLowering().lower(whole(lambda x: torch.native_layer_norm(x, [6], None, None, 1e-5), (x,)), Oracle())
    assert aten.native_layer_norm.default not in targets(lowered)
    for mine, theirs in zip(run(lowered, x), torch.native_layer_norm(x, [6], None, None, 1e-5), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, True])
def test_bytes_of_an_image_are_rounded_as_eager_does(mode: str, antialias: bool) -> None:
    def resize(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, (13, 7), mode=mode, antialias=antialias)

    x = torch.randint(0, 256, (1, 3, 27, 27), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    lowered = AtenLowering().lower(whole(resize, (x,)), Oracle())
    assert torch.equal(run(lowered, x)[0], resize(x))


def test_running_statistics_are_written() -> None:
    """``torch.export`` keeps ``instance_norm`` whole, whose schema says nothing of what it writes."""
    x = _wide(2, 3, 4)
    means, mine = torch.zeros(3), torch.zeros(3)

    def trained(x: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        return F.instance_norm(x, mean, torch.ones(3), use_input_stats=True, momentum=0.5)

    program = AtenLowering().lower(whole(trained, (x, mine)), Oracle())
    assert aten.instance_norm.default in targets(program)
    for _ in range(2):
        torch.testing.assert_close(run(program, x, mine)[0], trained(x, means))
        torch.testing.assert_close(mine, means)
