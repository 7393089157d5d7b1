"""Classes as rows, writes by place, bilinear layers, transposed convolutions and pools of every form: whole in an engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

import torchkiln
from torchkiln_testing import OpClass, assert_same

T = torch.Tensor
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
NOT_BFLOAT16 = (torch.float32, torch.float16)


def values(*shape: int) -> T:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


HELD = {
    "weight": values(4, 6, 6),
    "kernel_1d": values(6, 2, 3),
    "kernel_2d": values(6, 2, 3, 2),
    "kernel_3d": values(6, 2, 2, 1, 2),
    "bias": values(4),
    "places": torch.tensor([0, -1, 7, 3]),
}


class Call(torch.nn.Module):
    """``[*] -> [*]``: a function of the argument and of this module, which holds tensors for it."""

    def __init__(self, function: Callable[[T, Any], Any]) -> None:
        super().__init__()
        self.function = function
        for name, tensor in HELD.items():
            self.register_buffer(name, tensor)

    def forward(self, x: T) -> Any:
        return self.function(x, self)


CALLS: dict[str, tuple[Callable[[T, Any], Any], tuple[int, ...], tuple[torch.dtype, ...], OpClass]] = {
    "one_hot": (lambda x, _: F.one_hot((x.abs() * 2).clamp(max=4).long(), 5), (3, 6), (torch.float32,), OpClass.EXACT),
    "put": (lambda x, held: x.put(held.places, x[0, :4] * 2), (3, 6), FLOATS, OpClass.EXACT),
    "put that adds": (lambda x, held: x.put(held.places.abs(), x[0, :4], accumulate=True), (3, 6), FLOATS, OpClass.PARTIAL),
    "bilinear": (lambda x, held: F.bilinear(x, x * 0.5, held.weight, held.bias), (3, 6), FLOATS, OpClass.MATMUL),
    "conv_transpose1d": (
        lambda x, held: F.conv_transpose1d(x, held.kernel_1d, held.bias, stride=3, output_padding=2, groups=2),
        (3, 6, 5),
        FLOATS,
        OpClass.MATMUL,
    ),
    "conv_transpose2d": (
        lambda x, held: F.conv_transpose2d(x, held.kernel_2d, held.bias, padding=(1, 0), output_padding=(0, 1), dilation=2, groups=2),
        (3, 6, 5, 4),
        NOT_BFLOAT16,
        OpClass.MATMUL,
    ),
    "conv_transpose3d": (
        lambda x, held: F.conv_transpose3d(x, held.kernel_3d, held.bias, stride=2, output_padding=(1, 0, 1), groups=2),
        (3, 6, 2, 3, 3),
        NOT_BFLOAT16,
        OpClass.MATMUL,
    ),
    "conv_transpose1d, strided and dilated": (
        lambda x, held: F.conv_transpose1d(x, held.kernel_1d, held.bias[:2], stride=3, padding=1, output_padding=2, dilation=2),
        (3, 6, 5),
        FLOATS,
        OpClass.MATMUL,
    ),
    "conv_transpose2d, strided and dilated": (
        lambda x, held: F.conv_transpose2d(x, held.kernel_2d, held.bias, (2, 3), (1, 0), (1, 3), groups=2, dilation=(2, 4)),
        (3, 6, 5, 4),
        NOT_BFLOAT16,
        OpClass.MATMUL,
    ),
    "conv_transpose3d, strided and dilated": (
        lambda x, held: F.conv_transpose3d(x, held.kernel_3d, held.bias, (2, 3, 2), (1, 0, 0), (0, 1, 2), groups=2, dilation=(2, 2, 3)),
        (3, 6, 2, 3, 3),
        NOT_BFLOAT16,
        OpClass.MATMUL,
    ),
    "avg_pool1d": (lambda x, _: F.avg_pool1d(x, 3, 2, 1, True, False), (3, 6, 9), FLOATS, OpClass.REDUCTION),
    "avg_pool2d": (lambda x, _: F.avg_pool2d(x, 3, 2, 1, True, False, divisor_override=5), (3, 2, 8, 9), FLOATS, OpClass.REDUCTION),
    "avg_pool3d": (lambda x, _: F.avg_pool3d(x, 2, 2, 1, divisor_override=-3), (3, 2, 4, 5, 3), (torch.float32,), OpClass.REDUCTION),
}
CASES = [pytest.param(name, dtype, id=f"{name}, {dtype}") for name, (_, _, dtypes, _) in CALLS.items() for dtype in dtypes]


def check(name: str, dtype: torch.dtype, dynamic: bool, device: str, **options: Any) -> None:
    function, shape, _, kind = CALLS[name]
    x, model = values(*shape).to(device, dtype), Call(function).to(device, dtype)
    shapes = ({0: Dim("batch", min=2, max=9)},) if dynamic else None
    compiled = torchkiln.compile(model, (x,), dynamic_shapes=shapes, min_block_size=1, require_full_compilation=True, **options)
    assert [segment.kind for segment in compiled.report.segments] == ["engine"]
    for given in (x, *((x[1:], torch.cat([x, x, x])) if dynamic else ())):
        assert_same(model(given), compiled(given), kind)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_equals_eager_on_the_reference_engine(name: str, dtype: torch.dtype, dynamic: bool) -> None:
    check(name, dtype, dynamic, "cpu", engine="reference", targets=["sm_89"])


@pytest.mark.gpu
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_equals_eager_on_tensorrt(name: str, dtype: torch.dtype, dynamic: bool) -> None:
    check(name, dtype, dynamic, "cuda", engine="tensorrt")
