"""Attention: backend kernels back to the operator, and the operator in elementary ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lowering_programs import FLOATS, Oracle, aten, guard_state, run, targets, whole
from torch.export import Dim

from torchkiln_lowering import AtenLowering

SDPA = aten.scaled_dot_product_attention.default


def _qkv(dtype: torch.dtype = torch.float32, *, heads: int = 2, length: int = 5) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(1)
    query = torch.randn(2, 2, 3, 4, generator=g).to(dtype)
    return (query, *(torch.randn(2, heads, length, 4, generator=g).to(dtype) for _ in range(2)))


BOOLS = torch.tensor([[True, False, True, True, False], [False] * 5, [True] * 5])
VARIANTS = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.3},
    "negative scale": {"scale": -0.3},
    "bool mask with an empty row": {"attn_mask": BOOLS},
    "float mask with an empty row": {"attn_mask": torch.where(BOOLS, 0.5, float("-inf"))},
}


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize("variant", VARIANTS)
def test_elementary_form_equals_eager(variant: str, dtype: torch.dtype) -> None:
    options = {
        key: item.to(dtype) if torch.is_tensor(item) and item.is_floating_point() else item for key, item in VARIANTS[variant].items()
    }

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, **options)

    inputs = _qkv(dtype)
    lowered = AtenLowering().lower(whole(attend, inputs), Oracle())
    assert not [call for call in targets(lowered) if call not in Oracle().targets]
    tolerance = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    torch.testing.assert_close(run(lowered, *inputs)[0], attend(*inputs), rtol=tolerance, atol=tolerance)


BIASES = {
    "padding": torch.where(torch.arange(5) < torch.tensor([5, 3])[:, None], 0.0, float("-inf"))[:, None, None],
    "padding by truth": (torch.arange(5) < torch.tensor([5, 3])[:, None])[:, None, None],
    "ALiBi": -torch.tensor([0.5, 0.25])[:, None, None] * (torch.arange(3)[:, None] + 2 - torch.arange(5)).abs(),
    "relative positions": torch.linspace(-2, 2, 2 * 3 * 5).view(1, 2, 3, 5),
    "one for all": torch.linspace(-2, 2, 5).view(1, 5),
}


@pytest.mark.parametrize(("name", "kept"), [*((name, False) for name in BIASES), ("ALiBi", True)])
def test_a_bias_is_used_as_it_is_given(name: str, kept: bool) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    inputs = (*_qkv(), BIASES[name])
    lowered = AtenLowering().lower(whole(attend, inputs), Oracle(*[SDPA] * kept))
    assert (SDPA in targets(lowered)) == kept
    torch.testing.assert_close(run(lowered, *inputs)[0], attend(*inputs))


def test_grouped_heads() -> None:
    query, key, value = _qkv(heads=1)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    lowered = AtenLowering().lower(whole(attend, (query, key, value)), Oracle())
    assert SDPA not in targets(lowered)
    torch.testing.assert_close(run(lowered, query, key, value)[0], attend(query, key, value))


def test_dynamic_lengths_add_no_guards() -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    keys = {2: Dim("keys", min=2, max=64)}
    program = whole(attend, _qkv(), (({2: Dim("queries", min=2, max=64)}, keys, keys),))
    guards = guard_state(program)
    lowered = AtenLowering().lower(program, Oracle(aten.arange.default))
    assert guard_state(program) == guards
    assert SDPA not in targets(lowered)
    inputs = _qkv(length=9)
    torch.testing.assert_close(run(lowered, *inputs)[0], attend(*inputs))


@pytest.mark.parametrize("variant", ["plain", "causal", "scale", "float mask with an empty row"])
def test_cpu_kernel_becomes_the_operator(variant: str) -> None:
    options = VARIANTS[variant]

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, **options)[0]

    program = whole(attend, _qkv())
    assert aten._scaled_dot_product_flash_attention_for_cpu.default in targets(program)
    lowered = AtenLowering().lower(program, Oracle(SDPA))
    assert [call for call in targets(lowered) if call not in Oracle(SDPA).targets] == []
    assert SDPA in targets(lowered)
    torch.testing.assert_close(run(lowered, *_qkv())[0], attend(*_qkv()))


def test_kernel_whose_logsumexp_is_read_stays() -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)

    lowered = AtenLowering().lower(whole(attend, _qkv()), Oracle(SDPA))
    assert SDPA not in targets(lowered)
    assert aten._scaled_dot_product_flash_attention_for_cpu.default in targets(lowered)


def test_dropout_in_attention_stays() -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)

    lowered = AtenLowering().lower(whole(attend, _qkv()), Oracle())
    assert targets(lowered) == [SDPA]
