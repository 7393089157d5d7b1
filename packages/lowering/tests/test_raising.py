"""Patterns that are raised to one operator, and their look-alikes that are not."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lowering_programs import Oracle, aten, run, targets, whole

from torchkiln_lowering import AtenLowering
from torchkiln_lowering.passes.absorb import absorb_bias, absorb_padding
from torchkiln_lowering.passes.raise_gelu import raise_gelu
from torchkiln_lowering.passes.raise_layer_norm import raise_layer_norm
from torchkiln_testing import OpClass, assert_keeps, assert_rewrites

X = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
IMAGE = torch.randn(1, 2, 7, 9, generator=torch.Generator().manual_seed(0))
GELU, NORM = aten.gelu.default, aten.layer_norm.default

GELUS: dict[str, Any] = {
    "bert": lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
    "halved last": lambda x: x * (torch.erf(x * 0.7071067811865476) + 1.0) * 0.5,
    "divided": lambda x: x * (1 + torch.erf(x / 1.4142135)) / 2,
    "gpt2": lambda x: 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0)))),
    "cubed by products": lambda x: x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x))) * 0.5,
    "fast": lambda x: 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x))),
}


@pytest.mark.parametrize("form", GELUS)
def test_gelu(form: str) -> None:
    after = assert_rewrites(raise_gelu, GELUS[form], (X,), made=(GELU,), gone=(aten.add.Tensor,), op_class=OpClass.REDUCTION)
    (node,) = after.graph.find_nodes(op="call_function", target=GELU)
    assert node.kwargs["approximate"] == ("none" if form in ("bert", "halved last", "divided") else "tanh")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 0.5 * (1.0 + torch.erf(x / 1.5)),
        lambda x: x * 0.4 * (1.0 + torch.erf(x / math.sqrt(2.0))),
        lambda x: x * 0.5 * (2.0 + torch.erf(x / math.sqrt(2.0))),
        lambda x: (x + 1) * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
        lambda x: 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.05 * torch.pow(x, 3.0)))),
        lambda x: 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 2.0)))),
        lambda x: x[:1] * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
        lambda x: torch.view_as_real(x * 0.5j * 2),
    ],
)
def test_no_gelu(function: Any) -> None:
    assert_keeps(raise_gelu, function, (X,))


def _centred(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(-1, keepdim=True)


W = torch.linspace(0.5, 2, 8)
NORMS: dict[str, Any] = {
    "var": lambda x: (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, correction=0) + 1e-5),
    "pow": lambda x: _centred(x) * torch.rsqrt(_centred(x).pow(2).mean(-1, keepdim=True) + 1e-6),
    "affine": lambda x: W * ((x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True, correction=0) + 1e-5)) + W,
}


@pytest.mark.parametrize("form", NORMS)
def test_layer_norm(form: str) -> None:
    x = X * 2 + 1

    class Everything:
        targets: frozenset[Any] = frozenset()

        def reject(self, call: Any) -> None:
            return None

    lowered = AtenLowering().lower(whole(NORMS[form], (x,)), Everything())
    assert targets(lowered) == [NORM]
    torch.testing.assert_close(run(lowered, x)[0], NORMS[form](x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: _centred(x) / torch.sqrt(x.var(-1, keepdim=True, correction=1) + 1e-5),
        lambda x: _centred(x) / torch.sqrt(x.var(1, keepdim=True, correction=0) + 1e-5),
        lambda x: _centred(x) / (torch.sqrt(x.var(-1, keepdim=True, correction=0)) + 1e-5),
        lambda x: _centred(x).half() / torch.sqrt(x.half().var(-1, keepdim=True, correction=0) + 1e-5),
    ],
)
def test_no_layer_norm(function: Any) -> None:
    assert_keeps(raise_layer_norm, function, (X,))


pad = aten.constant_pad_nd
KERNEL = torch.randn(3, 2, 3, 3, generator=torch.Generator().manual_seed(0))


def _conv(x: torch.Tensor, **settings: Any) -> torch.Tensor:
    given = {"stride": [2, 1], "padding": [1, 0], "dilation": [1, 1], "transposed": False, "output_padding": [0, 0], "groups": 1}
    given |= settings
    return aten.convolution(x, KERNEL, None, *given.values())


PADDED: dict[str, Any] = {
    "conv": lambda x: _conv(pad(x, [1, 1, 2, 2])),
    "average": lambda x: F.avg_pool2d(pad(x, [1, 1]), 3, 2),
    "average counting": lambda x: F.avg_pool2d(pad(x, [0, 0, 1, 1]), [4, 4], 1, padding=1),
    "max": lambda x: aten.max_pool2d_with_indices(pad(x, [1, 1, 1, 1], -math.inf), [3, 3], [2, 2])[0],
}


@pytest.mark.parametrize("form", PADDED)
def test_padding(form: str) -> None:
    assert_rewrites(absorb_padding, PADDED[form], (IMAGE,), gone=(aten.constant_pad_nd.default,), op_class=OpClass.MATMUL)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: _conv(pad(x, [1, 0, 2, 2])),
        lambda x: _conv(pad(x, [1, 1, 2, 2], 1.0)),
        lambda x: _conv(pad(x, [-1, -1, 2, 2])),
        lambda x: F.avg_pool2d(pad(x, [2, 2]), 3, 2),
        lambda x: F.avg_pool2d(pad(x, [1, 1]), 3, 2, padding=1, count_include_pad=False),
        lambda x: F.avg_pool2d(pad(x, [1, 1]), 3, 2, ceil_mode=True),
        lambda x: aten.max_pool2d_with_indices(pad(x, [1, 1, 1, 1]), [3, 3], [2, 2])[0],
        lambda x: aten.max_pool2d_with_indices(pad(x, [1, 1, 1, 1], -math.inf), [3, 3], [2, 2])[1],
    ],
)
def test_padding_that_stays(function: Any) -> None:
    assert_keeps(absorb_padding, function, (IMAGE,))


def test_bias() -> None:
    a, b, bias = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)
    assert_rewrites(absorb_bias, lambda a, b, c: c + a.mm(b), (a, b, bias), gone=(aten.mm.default,), made=(aten.addmm.default,))
    assert_keeps(absorb_bias, lambda a, b, c: a.mm(b) + c, (a, b, torch.randn(3, 5)))
    assert_keeps(absorb_bias, lambda a, b, c: a.mm(b) + c, (a, b[:, :1], bias))
    assert_keeps(absorb_bias, lambda a, b, c: torch.add(a.mm(b), c, alpha=2), (a, b, bias))

    def read_twice(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        product = a.mm(b)
        return product + c, product

    assert_keeps(absorb_bias, read_twice, (a, b, bias))


def test_what_no_converter_takes_is_not_raised() -> None:
    """An oracle that knows the elementary calls only gets them as they are."""
    lowered = AtenLowering().lower(whole(GELUS["bert"], (X,)), Oracle())
    assert GELU not in targets(lowered)
    assert aten.erf.default in targets(lowered)
