"""Networks between quantize and dequantize, as ``torch.ao`` writes them, and what else computes with integers of one byte."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed
import torch.nn.functional as F
from torch.export import Dim

import torchkiln
from torchkiln_testing import OpClass, assert_same

aten = torch.ops.aten
quantized = torch.ops.quantized_decomposed
Kind = tuple[int, int, int, torch.dtype]
KINDS: Mapping[str, Kind] = {
    "int8": (0, -128, 127, torch.int8),
    "int8, symmetric": (0, -127, 127, torch.int8),
    "int8, moved": (-3, -128, 127, torch.int8),
    "uint8": (128, 0, 255, torch.uint8),
    "int16": (0, -32768, 32767, torch.int16),
}
PLAIN = KINDS["int8, symmetric"]


def limited(x: torch.Tensor, scale: float, kind: Kind) -> torch.Tensor:
    """Quantized and back, ``[*] -> [*]``."""
    small = quantized.quantize_per_tensor(x, scale, *kind)
    return quantized.dequantize_per_tensor(small, scale, *kind, out_dtype=x.dtype)  # type: ignore[no-any-return]


def weighted(weight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A weight by its channels, whole or quantized already."""
    if weight.is_floating_point():
        weight = quantized.quantize_per_channel(weight, scales, zeros, 0, *PLAIN[1:])
    return quantized.dequantize_per_channel(weight, scales, zeros, 0, *PLAIN[1:], out_dtype=dtype)  # type: ignore[no-any-return]


class Layer(torch.nn.Module):
    """A weight with a scale per channel, before a bias."""

    weight: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor

    def __init__(self, held: bool, *shape: int) -> None:
        super().__init__()
        weight = torch.randn(shape) / shape[1] ** 0.5
        scales = weight.flatten(1).abs().amax(1) / 127
        if held:
            weight = quantized.quantize_per_channel(weight, scales, torch.zeros(shape[0], dtype=torch.int64), 0, *PLAIN[1:])
        self.register_buffer("weight", weight)
        self.register_buffer("scales", scales)
        self.register_buffer("zeros", torch.zeros(shape[0], dtype=torch.int64))
        self.bias = torch.nn.Parameter(torch.randn(shape[0]))


class Linear(Layer):
    """``[N, C] -> [N, K]``."""

    def __init__(self, kind: Kind, held: bool = False, sizes: tuple[int, int] = (24, 40)) -> None:
        super().__init__(held, *sizes)
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = limited(x, 0.031, self.kind)
        return F.linear(x, weighted(self.weight, self.scales, self.zeros, x.dtype), self.bias)


class Conv(Layer):
    """``[N, C, H, W] -> [N, K, H, W]``."""

    def __init__(self, kind: Kind, held: bool = False, sizes: tuple[int, int] = (16, 8)) -> None:
        super().__init__(held, *sizes, 3, 3)
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = limited(x, 0.027, self.kind)
        return F.relu(F.conv2d(x, weighted(self.weight, self.scales, self.zeros, x.dtype), self.bias, padding=1))


class Net(torch.nn.Module):
    """``[N, 8, H, W] -> [N, 24]``."""

    def __init__(self, kind: Kind, held: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.last = Conv(kind, held), Conv(kind, held, (40, 16)), Linear(kind, held)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(F.max_pool2d(self.first(x), 2))
        return self.last(x.mean((2, 3)))  # type: ignore[no-any-return]


def check(net: Any, inputs: tuple[torch.Tensor, ...], engine: str, device: str = "cpu", **options: Any) -> None:
    if isinstance(net, torch.nn.Module):
        net = net.eval().to(device)
    inputs = tuple(x.to(device) for x in inputs)
    exact = options.pop("exact", False)
    with torch.no_grad():
        compiled = torchkiln.compile(net, inputs, engine=engine, min_block_size=1, require_full_compilation=True, **options)
        expected = net(*inputs)
        assert_same(expected, compiled(*inputs), OpClass.EXACT if exact else OpClass.MODEL)


def case(layer: str, kind: str, held: bool, dtype: torch.dtype) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    nets: Mapping[str, Callable[[Kind, bool], torch.nn.Module]] = {"linear": Linear, "convolution": Conv, "network": Net}
    net = nets[layer](KINDS[kind], held)
    for name, parameter in net.named_parameters():
        if name.endswith("bias"):
            parameter.data = parameter.data.to(dtype)
    return net.eval(), (torch.randn((6, 40) if layer == "linear" else (3, 8, 12, 10)).to(dtype),)


EVERY = pytest.mark.parametrize("kind", KINDS)
LAYERS = pytest.mark.parametrize("layer", ["linear", "convolution", "network"])
HELD = pytest.mark.parametrize("held", [False, True], ids=["weights in floats", "weights in int8"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)


@EVERY
@LAYERS
@HELD
def test_equals_eager_on_the_reference_engine(layer: str, kind: str, held: bool) -> None:
    check(*case(layer, kind, held, torch.float32), "reference")


@DTYPES
@HELD
def test_equals_eager_in_halves_on_the_reference_engine(dtype: torch.dtype, held: bool) -> None:
    check(*case("linear", "int8", held, dtype), "reference")


@EVERY
@HELD
def test_equals_eager_with_a_dynamic_batch(kind: str, held: bool) -> None:
    check(*case("network", kind, held, torch.float32), "reference", dynamic_shapes={"x": {0: Dim("n", min=2, max=64)}})


def whole(*shape: int) -> torch.Tensor:
    return torch.randint(-128, 128, shape, generator=torch.Generator().manual_seed(1)).to(torch.int8)


class Products(torch.nn.Module):
    """``[M, K] -> [M, N]`` as dynamic quantization of a linear layer computes it."""

    weight: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", whole(24, 1600))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        small = quantized.quantize_per_tensor(x, 0.031, *PLAIN)
        return torch._int_mm(small.reshape(-1, 1600), self.weight.t()).to(torch.float32) * 0.02


def truncated(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
    small, byte = x.to(torch.int8), x.abs().to(torch.uint8)
    return small.float(), byte.float(), n.to(torch.uint8).to(torch.int64), n.to(torch.int8).to(torch.int32), small, byte


class Faked(torch.nn.Module):
    """``[N, 8]`` five times."""

    scales: torch.Tensor
    zeros: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scales", torch.rand(8, generator=torch.Generator().manual_seed(2)) * 0.1 + 0.01)
        self.register_buffer("zeros", torch.arange(8, dtype=torch.int32))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (
            torch.fake_quantize_per_tensor_affine(x, 0.037, 5, -128, 127),
            torch.fake_quantize_per_channel_affine(x, self.scales, self.zeros, 1, 0, 255),
            torch.fake_quantize_per_tensor_affine(x, self.scales[:1], self.zeros[:1], -8, 7),
            *aten.fake_quantize_per_tensor_affine_cachemask(x, 0.5, 0, -4, 3),
        )


X, N = torch.arange(-60.0, 60).reshape(15, 8) * 0.37, torch.tensor([0, 255, 256, -1, -129, (1 << 40) + 7])
EXACT: Mapping[str, tuple[Any, tuple[torch.Tensor, ...]]] = {
    "products": (Products(), (torch.randn(20, 1600, generator=torch.Generator().manual_seed(4)),)),
    "casts to one byte": (truncated, (X, N)),
    "fake quantization": (Faked(), (X,)),
    "quantized result": (lambda x: quantized.quantize_per_tensor(x, 0.05, *KINDS["uint8"]), (X,)),
    "quantized argument": (lambda n: quantized.dequantize_per_tensor(n, 0.05, *PLAIN), (whole(4, 6),)),
}


@pytest.mark.parametrize("name", EXACT)
def test_equals_eager_exactly_on_the_reference_engine(name: str) -> None:
    check(*EXACT[name], "reference", exact=True)


@EVERY
@HELD
def test_plans_are_built_without_a_gpu(kind: str, held: bool) -> None:
    pytest.importorskip("tensorrt_rtx")
    net, inputs = case("network", kind, held, torch.float32)
    check(net, inputs, "reference", targets=["sm_89"])
    check(net, inputs, "reference", targets=["sm_89"], dynamic_shapes={"x": {0: Dim("n", min=2, max=64)}})


@pytest.mark.parametrize("name", EXACT)
def test_plans_of_integers_are_built_without_a_gpu(name: str) -> None:
    pytest.importorskip("tensorrt_rtx")
    check(*EXACT[name], "reference", exact=True, targets=["sm_89"])


@pytest.mark.gpu
@EVERY
@LAYERS
@HELD
def test_equals_eager_on_tensorrt(layer: str, kind: str, held: bool) -> None:
    check(*case(layer, kind, held, torch.float32), "tensorrt", "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("name", EXACT)
def test_equals_eager_exactly_on_tensorrt(name: str) -> None:
    check(*EXACT[name], "tensorrt", "cuda", exact=True)
