"""Attention as written by hand: raised where the operator computes exactly the same, left alone elsewhere."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from lowering_programs import Oracle, aten, capture, guard_state, run, targets
from torch.export import Dim

from torchkiln_lowering import AtenLowering
from torchkiln_lowering.passes.raise_attention import raise_attention
from torchkiln_testing import OpClass, assert_keeps, assert_rewrites

SDPA = aten.scaled_dot_product_attention.default
INF = float("inf")
LEAST = torch.finfo(torch.float32).min


def _qkv(dtype: torch.dtype = torch.float32, *, keys: int = 5) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(1)
    query = torch.randn(2, 3, 4, 8, generator=g).to(dtype)
    return (query, *(torch.randn(2, 3, keys, width, generator=g).to(dtype) for width in (8, 6)))


class Everything:
    targets: frozenset[Any] = frozenset()

    def reject(self, call: Any) -> None:
        return None


def lowered(function: Any, inputs: tuple[torch.Tensor, ...], dynamic: Any = None) -> Any:
    return AtenLowering().lower(capture(function, inputs, dynamic), Everything())


def _causal(rows: int, columns: int) -> torch.Tensor:
    return torch.ones(rows, columns, dtype=torch.bool).tril()


def _by_views(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """As a traced four-dimensional ``matmul`` reads where it is decomposed."""
    flat = [item.expand(item.shape).reshape(-1, *item.shape[-2:]) for item in (q, k.transpose(2, 3))]
    weights = (torch.bmm(*flat).view(*q.shape[:3], -1) / 2).softmax(-1)
    return torch.bmm(weights.view(-1, *weights.shape[-2:]), v.reshape(-1, *v.shape[-2:])).view(*q.shape[:3], -1)


RAISED: dict[str, Any] = {
    "scaled scores": lambda q, k, v: ((q @ k.transpose(-2, -1)) * 0.5).softmax(-1) @ v,
    "scaled operands": lambda q, k, v: torch.softmax((q / math.sqrt(8)) @ (k * 0.9).mT / 2, 3) @ v,
    "unscaled": lambda q, k, v: (q @ k.mT).softmax(-1) @ v,
    "permuted": lambda q, k, v: (q @ k.transpose(1, 2).contiguous().permute(0, 2, 3, 1)).softmax(-1) @ v,
    "keys that stand up": lambda q, k, v: (q @ (k.mT + 1)).softmax(-1) @ v,
    "three dimensions": lambda q, k, v: torch.bmm(torch.bmm(q[0], k[0].mT).softmax(-1), v[0]),
    "views": _by_views,
    "causal": lambda q, k, v: ((q @ k.mT) / 3).masked_fill(~_causal(4, 5), -INF).softmax(-1) @ v,
    "causal by where": lambda q, k, v: torch.where(_causal(4, 5)[None, None], q @ k.mT, torch.full([], LEAST)).softmax(-1) @ v,
    "padding": lambda q, k, v: (q @ k.mT).masked_fill(torch.arange(5)[None] > 2, -INF).softmax(-1) @ v,
    "bias": lambda q, k, v: (torch.linspace(-3, 2, 20).view(4, 5) + (q @ k.mT) * 0.1).softmax(-1) @ v,
}


@pytest.mark.parametrize("form", RAISED)
def test_raised(form: str) -> None:
    inputs = _qkv()
    program = lowered(RAISED[form], inputs)
    assert SDPA in targets(program)
    assert not {aten._softmax.default, aten.softmax.int, aten.matmul.default, aten.bmm.default} & set(targets(program))
    (call,) = program.module.graph.find_nodes(op="call_function", target=SDPA)
    assert (call.args[5] is True) == form.startswith("causal")
    torch.testing.assert_close(run(program, *inputs)[0], RAISED[form](*inputs))


def test_masks_have_values_within_a_fake_mode() -> None:
    """``torch.compile`` lowers in its fake mode."""
    program = capture(RAISED["causal"], _qkv(), None)
    with next(iter(program.module.graph.nodes)).meta["val"].fake_mode:
        assert SDPA in targets(AtenLowering().lower(program, Everything()))


def test_dynamic_sizes_add_no_guards() -> None:
    sizes, keys = {0: Dim.DYNAMIC, 2: Dim.DYNAMIC}, {0: Dim.DYNAMIC, 2: Dim.DYNAMIC}
    # Values as wide as the keys: for others, torch 2.11 cannot trace the operator without guards.
    query, key, _ = _qkv()
    program = capture(RAISED["scaled scores"], (query, key, key), ((sizes, keys, keys),))
    guards = guard_state(program)
    after = AtenLowering().lower(program, Everything())
    assert guard_state(program) == guards
    assert targets(after) == [SDPA]
    query, key, _ = _qkv(keys=9)
    inputs = (query, key, key)
    torch.testing.assert_close(run(after, *inputs)[0], RAISED["scaled scores"](*inputs))


def _half_softmax(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q.half() @ k.half().mT
    return torch.softmax(scores, -1, dtype=torch.float32).half() @ v.half()


def _read_twice(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    weights = (q @ k.mT).softmax(-1)
    return weights @ v, weights


EMPTY_ROW = torch.tensor([[True] * 5, [False] * 5, [True] * 5, [True] * 5])
KEPT: dict[str, Any] = {
    "half dtypes": lambda q, k, v: (q.half() @ k.half().mT).softmax(-1) @ v.half(),
    "half scores with a wide softmax": _half_softmax,
    "weights that are read": _read_twice,
    "another dimension": lambda q, k, v: (q @ k.mT).softmax(-2) @ v,
    "weights on the right": lambda q, k, v: v[:, :, :4].mT @ (q @ k.mT).softmax(-1),
    "one head of keys": lambda q, k, v: (q @ k[:, :1].mT).softmax(-1) @ v,
    "a mask that is an input": lambda q, k, v: ((q @ k.mT) + v[..., :4, :5]).softmax(-1) @ v,
    "a mask that hides a row": lambda q, k, v: (q @ k.mT).masked_fill(~EMPTY_ROW.clone(), -INF).softmax(-1) @ v,
    "a bias that hides a row": lambda q, k, v: ((q @ k.mT) + torch.full((4, 5), -INF)).softmax(-1) @ v,
    "a mask of large numbers": lambda q, k, v: (q @ k.mT).masked_fill(~_causal(4, 5), -1e4).softmax(-1) @ v,
    "dropout": lambda q, k, v: torch.nn.functional.dropout((q @ k.mT).softmax(-1), 0.5, training=True) @ v,
}


@pytest.mark.parametrize("form", KEPT)
def test_kept(form: str) -> None:
    program = lowered(KEPT[form], _qkv())
    assert SDPA not in targets(program)
    torch.manual_seed(0)
    want = KEPT[form](*_qkv())
    torch.manual_seed(0)
    got = run(program, *_qkv())
    for mine, theirs in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True)


def test_later_views_stay_legal() -> None:
    """A kernel of PyTorch may lay its result out otherwise than a product does."""

    def compute(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return ((q @ k.mT).softmax(-1) @ v).view(2, 12, 6) * 2

    assert_rewrites(raise_attention, compute, _qkv(), made=(SDPA,), gone=(aten.matmul.default,), op_class=OpClass.MATMUL)
    assert_keeps(raise_attention, lambda q, k, v: (q @ k.mT).softmax(1) @ v, _qkv())


def test_what_no_converter_takes_is_not_raised() -> None:
    program = AtenLowering().lower(capture(RAISED["keys that stand up"], _qkv()), Oracle(aten.matmul.default, aten.transpose.int))
    assert SDPA not in targets(program)
    torch.testing.assert_close(run(program, *_qkv())[0], RAISED["keys that stand up"](*_qkv()))
