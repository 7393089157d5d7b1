"""Normalizations as written by hand: raised where the operator computes the same, left alone where it rounds otherwise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lowering_programs import FLOATS, Oracle, aten, capture, guard_state, run, targets, whole
from torch import nn
from torch.export import Dim

from torchkiln_lowering import AtenLowering
from torchkiln_lowering.passes.raise_layer_norm import raise_group_norm, raise_layer_norm
from torchkiln_lowering.passes.raise_rms_norm import raise_rms_norm
from torchkiln_testing import OpClass, assert_keeps, assert_rewrites

RMS, GROUP, LAYER = aten.rms_norm.default, aten.group_norm.default, aten.layer_norm.default
X = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0)) * 2 + 1
IMAGE = torch.randn(2, 6, 4, 4, generator=torch.Generator().manual_seed(0)) * 2 + 1


class Everything:
    targets: frozenset[Any] = frozenset()

    def reject(self, call: Any) -> None:
        return None


def rounded(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """As Llama writes it: rounded before the weight."""
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * wide.to(x.dtype)


def promoted(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """As T5 writes it: the product widens ``x``."""
    y = x * torch.rsqrt(x.to(torch.float32).pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * y.to(weight.dtype)


def wide_weight(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """As Gemma writes it: the weight is fp32."""
    wide = x.float()
    wide = wide / torch.sqrt((wide * wide).mean(-1, keepdim=True) + 1e-6)
    return (wide * (1.0 + weight.float())).type_as(x)


def all_wide(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * (wide.pow(2).mean(-1, keepdim=True) + 1e-6).pow(-0.5) * weight.float()).to(x.dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("form", [rounded, promoted, wide_weight, all_wide], ids=lambda form: form.__name__)
def test_rms_norm(form: Any, dtype: torch.dtype) -> None:
    x, weight = X.to(dtype), torch.linspace(0.5, 2, 8).to(dtype)
    lowered = AtenLowering().lower(capture(form, (x, weight)), Everything())
    called = targets(lowered)
    assert called.count(RMS) == 1
    assert not {aten.rsqrt.default, aten.mean.dim, aten.pow.Tensor_Scalar, aten.sqrt.default} & set(called)
    if (dtype == torch.float32 and form is not wide_weight) or form is all_wide:
        assert called == [RMS]
    if dtype != torch.float32 and form in (rounded, promoted):
        assert called == [RMS, aten.mul.Tensor]
    exact = {"rtol": 0, "atol": 0} if dtype != torch.float32 and form in (rounded, promoted) else {}
    torch.testing.assert_close(run(lowered, x, weight)[0], form(x, weight), **exact)


def test_rms_norm_over_several_dimensions() -> None:
    assert_rewrites(
        raise_rms_norm,
        lambda x: x * torch.rsqrt(x.square().mean((-2, -1), keepdim=True) + 1e-5),
        (X,),
        made=(RMS,),
        gone=(aten.rsqrt.default,),
        op_class=OpClass.REDUCTION,
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6),
        lambda x: x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-6),
        lambda x: x * torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
        lambda x: x * torch.rsqrt((x + 1).pow(2).mean(-1, keepdim=True) + 1e-6),
        lambda x: x * torch.rsqrt(x.pow(4).mean(-1, keepdim=True) + 1e-6),
        lambda x: x[:1] * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
        lambda x: x.half() * torch.rsqrt(x.half().pow(2).mean(-1, keepdim=True) + 1e-6),
    ],
    ids=["another dimension", "a sum", "a root", "another square", "fourth powers", "broadcast", "half statistics"],
)
def test_no_rms_norm(function: Any) -> None:
    assert_keeps(raise_rms_norm, function, (X,))


class ByGroups(nn.Module):
    """Group normalization in elementary calls, with parameters ``[C]`` or ``[1, C, 1, 1]``."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 2, 6).view(shape))
        self.bias = nn.Parameter(torch.linspace(-1, 1, 6).view(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count, channels, height, width = x.shape
        y = x.reshape(count, 2, -1)
        y = (y - y.mean(-1, keepdim=True)) / torch.sqrt(y.var(-1, keepdim=True, unbiased=False) + 1e-5)
        y = y.reshape(count, channels, height, width)
        return y * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)


@pytest.mark.parametrize(
    ("shape", "dynamic"), [((6,), None), ((1, 6, 1, 1), ({0: Dim.DYNAMIC, 2: Dim.DYNAMIC},))], ids=["flat", "shaped and dynamic"]
)
def test_group_norm(shape: tuple[int, ...], dynamic: Any) -> None:
    net = ByGroups(*shape).eval()
    program = capture(net, (IMAGE,), dynamic)
    guards = guard_state(program)
    lowered = AtenLowering().lower(program, Everything())
    assert guard_state(program) == guards
    assert targets(lowered)[-1] is GROUP
    assert not {aten.var.correction, aten.div.Tensor, aten.mul.Tensor, aten.add.Tensor} & set(targets(lowered))
    x = IMAGE if dynamic is None else torch.cat([IMAGE, IMAGE + 1])[:, :, :3].contiguous()
    torch.testing.assert_close(run(lowered, x)[0], net(x))


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_group_norm_from_layer_norm(dtype: torch.dtype) -> None:
    def compute(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x.view(2, 3, 2, 4, 4), [2, 4, 4], eps=1e-3).view(2, 6, 4, 4) * 2

    after = assert_rewrites(raise_group_norm, compute, (IMAGE.to(dtype),), op_class=OpClass.REDUCTION)
    if LAYER in {node.target for node in after.graph.nodes}:
        pytest.fail(f"a layer norm is left:\n{after.graph}")


NOT_GROUPS: dict[str, Any] = {
    "another shape": lambda x: F.layer_norm(x.view(2, 2, 48), [48]).view(2, 3, 8, 4),
    "another batch": lambda x: F.layer_norm(x.view(1, 4, 48), [48]).view(2, 6, 4, 4),
    "split channels": lambda x: F.layer_norm(x.view(2, 4, 24), [24]).view(2, 6, 4, 4),
    "weights": lambda x: F.layer_norm(x.view(2, 2, 48), [48], torch.ones(48)).view(2, 6, 4, 4),
    "transposed": lambda x: F.layer_norm(x.transpose(2, 3).reshape(2, 2, 48), [48]).view(2, 6, 4, 4).transpose(2, 3),
}


@pytest.mark.parametrize("form", NOT_GROUPS)
def test_no_group_norm(form: str) -> None:
    function, x = NOT_GROUPS[form], IMAGE.transpose(2, 3).contiguous().transpose(2, 3) if form == "transposed" else IMAGE
    lowered = AtenLowering().lower(whole(function, (x,)), Everything())
    # A transposed image that is contiguous again before the groups is one.
    assert (GROUP in targets(lowered)) == (form == "transposed")
    torch.testing.assert_close(run(lowered, x)[0], function(x))


def test_layer_norm_over_several_dimensions() -> None:
    def compute(x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean((1, 2), keepdim=True)
        return centred * torch.rsqrt(centred.pow(2).mean((1, 2), keepdim=True) + 1e-5) * torch.ones(3, 8)

    assert_rewrites(raise_layer_norm, compute, (X,), made=(LAYER,), gone=(aten.rsqrt.default, aten.mul.Tensor), op_class=OpClass.REDUCTION)


def test_what_no_converter_takes_is_not_raised() -> None:
    net = ByGroups(1, 6, 1, 1).eval()
    lowered = AtenLowering().lower(capture(net, (IMAGE,)), Oracle())
    assert not {GROUP, LAYER} & set(targets(lowered))
    torch.testing.assert_close(run(lowered, IMAGE)[0], net(IMAGE))
