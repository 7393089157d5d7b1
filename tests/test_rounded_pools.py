"""bfloat16 convolution, elementwise float32, a cast back and a pooling: TensorRT-RTX fuses them into a kernel with wrong numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
import torch.nn.functional as F

import torchkiln
from torchkiln_testing import OpClass, assert_same

BETWEEN: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": lambda x: F.relu(x.float()).to(x.dtype),
    "gelu": lambda x: F.gelu(x.float()).to(x.dtype),
    "scale": lambda x: (1.7 * x.float() + 0.3).to(x.dtype),
    "selu": F.selu,
    "gelu in its dtype": F.gelu,
    "batch norm that is not folded": lambda x: F.batch_norm(F.relu(x), x.float().mean((0, 2, 3)), x.float().var((0, 2, 3))),
    "relu after the cast": lambda x: F.relu((1.7 * x.float() - 0.3).to(x.dtype)),
    "sum of two": lambda x: (x.float().relu() + x.float().sigmoid()).to(x.dtype),
}
POOLS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "average": lambda x: F.avg_pool2d(x, 2),
    "largest": lambda x: F.max_pool2d(x, 2),
    "largest of three, padded": lambda x: F.max_pool2d(x, 3, 2, 1),
    "average of all": lambda x: F.adaptive_avg_pool2d(x, 1),
}


class Net(torch.nn.Module):
    """``[N, 16, H, W] -> [N, 32, *, *]``."""

    def __init__(self, between: str, pool: str) -> None:
        super().__init__()
        self.conv, self.between, self.pool = torch.nn.Conv2d(16, 32, 3, padding=1), BETWEEN[between], POOLS[pool]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(self.between(self.conv(x)))


def check(between: str, pool: str, dtype: torch.dtype, engine: str, device: str) -> None:
    torch.manual_seed(0)
    net, x = Net(between, pool).to(device, dtype).eval(), torch.randn(3, 16, 16, 16, device=device).to(dtype)
    with torch.no_grad():
        compiled = torchkiln.compile(net, (x,), engine=engine, min_block_size=1, require_full_compilation=True)
        assert_same(net(x), compiled(x), OpClass.MODEL)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("between", ["scale", "selu", "gelu in its dtype"])
def test_equals_eager_on_the_reference_engine(between: str, pool: str) -> None:
    check(between, pool, torch.bfloat16, "reference", "cpu")


def test_a_peak_equals_its_own_maximum() -> None:
    """What finds the peaks of a heat map, which asks whether a number is the largest around it."""

    def peaks(x: torch.Tensor) -> torch.Tensor:
        heat = torch.sigmoid(F.softplus(F.conv2d(x, kernel)))
        return heat * (F.max_pool2d(heat, 3, 1, 1) == heat)

    torch.manual_seed(0)
    kernel, x = torch.randn(8, 16, 3, 3).bfloat16(), torch.randn(2, 16, 20, 20).bfloat16()
    with pytest.warns(torchkiln.FallbackWarning, match="wrong numbers"):
        compiled = torchkiln.compile(peaks, (x,), engine="reference", min_block_size=1)
    assert torch.equal(compiled(x) > 0, peaks(x) > 0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("between", BETWEEN)
def test_equals_eager_on_tensorrt(between: str, pool: str, dtype: torch.dtype) -> None:
    check(between, pool, dtype, "tensorrt", "cuda")
