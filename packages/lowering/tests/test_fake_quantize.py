"""Fake quantization equals eager bit by bit, and pairs over 16 bits become pairs over 32.

PyTorch itself infers no symbolic sizes of fake quantization, so there is no dynamic program of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed
from lowering_programs import Oracle, aten, run, targets, whole

from torchkiln_lowering import AtenLowering

quantized = torch.ops.quantized_decomposed
FLOATS = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
KINDS = [(0, -128, 127), (3, -128, 127), (128, 0, 255), (0, -32768, 32767), (0, -8, 7)]
SCALES, OFFSETS = torch.tensor([0.037, 0.5, 1 / 127, 3.3]), torch.tensor([0, 5, 7, 100], dtype=torch.int32)
ONE, ZERO = torch.tensor([0.037]), torch.tensor([3], dtype=torch.int32)


def oracle() -> Oracle:
    return Oracle(*(aten.round.default, aten.clamp.default, aten.reciprocal.default, aten.add.Scalar, aten.sub.Scalar, aten.view.default))


def values(dtype: torch.dtype) -> torch.Tensor:
    """Random numbers, and ties of half a step; no infinities or NaN, which PyTorch casts to integers: ``[*, 4]``."""
    noise = torch.randn(4000, generator=torch.Generator().manual_seed(0)) * 3
    return torch.cat([noise, torch.arange(-600, 600) * 0.5 * 0.037, torch.tensor([0.0, -0.0, 1e4, -1e4])]).reshape(-1, 4).to(dtype)


def lowered(compute: Any, args: tuple[torch.Tensor, ...]) -> Any:
    result = AtenLowering().lower(whole(compute, args), oracle())
    assert not [target for target in targets(result) if "fake_quantize" in str(target)]
    return result


def agrees(compute: Callable[..., Any], *args: torch.Tensor) -> None:
    for got, want in zip(run(lowered(compute, args), *args), _tuple(compute(*args)), strict=True):
        assert got.dtype == want.dtype
        assert torch.equal(got, want)
        assert torch.equal(got.signbit(), want.signbit())


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


@FLOATS
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_per_tensor(kind: tuple[int, int, int], dtype: torch.dtype) -> None:
    def compute(x: torch.Tensor) -> Any:
        masked = aten.fake_quantize_per_tensor_affine_cachemask(x, 0.037, *kind)
        return (torch.fake_quantize_per_tensor_affine(x, 0.37, *kind), *masked)

    agrees(compute, values(dtype))


@FLOATS
def test_scales_in_tensors(dtype: torch.dtype) -> None:
    def compute(x: torch.Tensor, enabled: torch.Tensor) -> Any:
        masked = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(x, ONE, ZERO, enabled, -128, 127)
        return (torch.fake_quantize_per_tensor_affine(x, ONE, ZERO, -8, 7), *masked)

    for enabled in (0, 1):
        agrees(compute, values(dtype), torch.tensor([enabled]))


@pytest.mark.parametrize("axis", [0, 1])
def test_per_channel(axis: int) -> None:
    def compute(x: torch.Tensor) -> Any:
        masked = aten.fake_quantize_per_channel_affine_cachemask(x, SCALES, OFFSETS, axis, -128, 127)
        return (torch.fake_quantize_per_channel_affine(x, SCALES, OFFSETS, axis, 0, 255), *masked)

    agrees(compute, values(torch.float32) if axis else values(torch.float32).t())


def test_corners() -> None:
    def compute(x: torch.Tensor) -> Any:
        return torch.fake_quantize_per_tensor_affine(x, 0.037, 3, -128, 127)

    for x in (torch.tensor(0.7), torch.ones(0, 3), torch.ones(1, 2, 1, 2, 1, 1, 1, 1)):
        agrees(compute, x)


@pytest.mark.parametrize("kind", [(0, -(1 << 31), (1 << 31) - 1), (0, -128, 1 << 25)], ids=str)
def test_what_float32_does_not_hold_stays(kind: tuple[int, int, int]) -> None:
    program = whole(lambda x: aten.fake_quantize_per_tensor_affine_cachemask(x, 0.037, *kind)[0], (torch.ones(3),))
    assert [target for target in targets(AtenLowering().lower(program, oracle())) if "fake_quantize" in str(target)]


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint16], ids=str)
def test_pairs_over_16_bits_become_pairs_over_32(dtype: torch.dtype) -> None:
    limits = (torch.iinfo(dtype).min, torch.iinfo(dtype).max, dtype)

    def compute(x: torch.Tensor) -> Any:
        one = quantized.quantize_per_tensor(x, 1e-4, 0, *limits)
        return quantized.dequantize_per_tensor(one, 1e-4, 0, *limits), quantized.quantize_per_tensor(x, 1e-3, 0, *limits)

    x = values(torch.float32)
    program = AtenLowering().lower(whole(compute, (x,)), oracle())
    dtypes = [node.meta["val"].dtype for node in program.module.graph.nodes if "quantize" in str(node.target)]
    assert dtypes == [torch.int32, torch.float32, dtype]
    for got, want in zip(run(program, x), compute(x), strict=True):
        assert torch.equal(got, want)
