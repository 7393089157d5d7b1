"""Rotary embedding as written by hand: raised in fp32 where the tables are known to repeat, left alone elsewhere."""

from __future__ import annotations

from typing import Any

import torch
from lowering_programs import Oracle, aten, capture, guard_state, run, targets
from torch.export import Dim

from torchkiln_core.options import LoweringOptions
from torchkiln_lowering import AtenLowering
from torchkiln_lowering.effects import ROTARY
from torchkiln_lowering.passes.raise_rotary import raise_rotary_embedding
from torchkiln_testing import OpClass, assert_keeps, assert_rewrites

ANGLES = torch.outer(torch.arange(6.0) + 1, torch.linspace(0.1, 1, 4))
X = torch.randn(2, 3, 6, 8, generator=torch.Generator().manual_seed(0))
F = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(1))


class Everything:
    targets: frozenset[Any] = frozenset()

    def reject(self, call: Any) -> None:
        return None


def halves(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], -1)


def chunks(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def pairs(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)


def joined(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([(-x[..., 1::2]).unsqueeze(-1), x[..., ::2].unsqueeze(-1)], -1).view(x.shape)


def twice(f: torch.Tensor) -> torch.Tensor:
    return torch.cat([f, f], -1)


def each(f: torch.Tensor) -> torch.Tensor:
    return f.unsqueeze(-1).expand(*f.shape, 2).reshape(*f.shape[:-1], -1)


def rows(f: torch.Tensor) -> torch.Tensor:
    return f.unsqueeze(-2).expand(*f.shape[:-1], 2, f.shape[-1]).reshape(*f.shape[:-1], -1)


def partly(x: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
    """As GPT-NeoX writes it: some features stay."""
    table = twice(f[..., :2])[:, None]
    turned, rest = x[..., :4], x[..., 4:]
    return torch.cat([turned * table.cos() + halves(turned) * table.sin(), rest], -1)


def rotary(turn: Any, cos: torch.Tensor, sin: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x * cos + turn(x) * sin


def tables(f: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return f.cos(), f.sin()


# A function of x and angles that are an input, and whether neighbours are pairs.
RAISED: dict[str, tuple[Any, bool]] = {
    "llama": (lambda x, f: rotary(halves, *(t.unsqueeze(1) for t in tables(twice(f) * 1.0)), x), False),
    "turned first": (lambda x, f: each(f.sin())[:, None] * pairs(x) + each(f.cos())[:, None] * x, True),
    "scaled tables": (lambda x, f: rotary(halves, *((t * 0.7 + 1).unsqueeze(1) for t in tables(twice(f))), x), False),
    "chunks": (lambda x, f: rotary(chunks, *(t.repeat(1, 1, 2)[:, None] for t in tables(f)), x), False),
    "rows": (lambda x, f: rotary(halves, *(rows(t)[:, None] for t in tables(f)), x), False),
    "joined": (lambda x, f: rotary(joined, *(torch.stack([t, t], -1).flatten(-2)[:, None] for t in tables(f)), x), True),
    "repeated": (lambda x, f: rotary(pairs, *(t.repeat_interleave(2, -1)[:, None] for t in tables(f)), x), True),
    "picked rows": (lambda x, f: rotary(halves, *tables(twice(f[0])[torch.tensor([5, 0, 1, 1, 3, 2])]), x), False),
    "one batch": (lambda x, f: rotary(halves, *tables(twice(f[:1]).unsqueeze(1)), x), False),
    "one angle for all": (lambda x, f: rotary(halves, *tables(twice(f[:, :1]).unsqueeze(1)), x), False),
    "constant halves": (lambda x, f: rotary(halves, *tables(twice(ANGLES)), x), False),
    "constant pairs": (lambda x, f: rotary(pairs, *tables(each(ANGLES)), x), True),
    "heads behind": (lambda x, f: rotary(pairs, *(t[:, :, None] for t in tables(each(f))), x.transpose(1, 2)), True),
    "heads behind, no batch": (
        lambda x, f: rotary(halves, *(t[:, None] for t in tables(twice(f[0]))), x.transpose(1, 2).contiguous()),
        False,
    ),
    "some features": (partly, False),
    "computed x": (lambda x, f: rotary(halves, *(t[:, None] for t in tables(twice(f))), x.double().mul(2).float()), False),
}


def test_raised() -> None:
    """In one graph: forms do not disturb each other, and tracing takes longest."""
    forms = [function for function, _ in RAISED.values()]
    after = assert_rewrites(
        raise_rotary_embedding,
        lambda x, f: tuple(function(x, f) for function in forms),
        (X, F),
        gone=(aten.neg.default,),
        op_class=OpClass.EXACT,
    )
    calls = after.graph.find_nodes(op="call_function", target=ROTARY)
    assert [call.kwargs["interleaved"] for call in calls] == [interleaved for _, interleaved in RAISED.values()]


KEPT: dict[str, Any] = {
    "unequal halves": lambda x, f: rotary(halves, *(t[:, None] for t in tables(torch.cat([f, f + 1], -1))), x),
    "tables that are inputs": lambda x, f: rotary(halves, x[:, :1] * 2, x[:, 1:2], x),
    "constants that differ": lambda x, f: rotary(halves, *tables(torch.linspace(0, 1, 48).view(6, 8)), x),
    "neighbours for halves": lambda x, f: rotary(halves, *(t[:, None] for t in tables(each(f))), x),
    "halves for neighbours": lambda x, f: rotary(pairs, *(t[:, None] for t in tables(twice(f))), x),
    "a sine that does not repeat": lambda x, f: rotary(halves, twice(f)[:, None].cos(), torch.cat([f, -f], -1)[:, None], x),
    "half": lambda x, f: rotary(halves, *(t[:, None].half() for t in tables(twice(f))), x.half()),
    "bfloat16": lambda x, f: rotary(pairs, *(t[:, None].bfloat16() for t in tables(each(f))), x.bfloat16()),
    "half x": lambda x, f: rotary(halves, *(t[:, None] for t in tables(twice(f))), x.half()),
    "double": lambda x, f: rotary(halves, *(t[:, None].double() for t in tables(twice(f))), x.double()),
    "tables of heads": lambda x, f: rotary(halves, *tables(twice(x[..., :4])), x),
    "one angle": lambda x, f: rotary(halves, *tables(f[:, None, :, :1]), x),
    "other halves": lambda x, f: rotary(lambda y: torch.cat([-y[..., :4], y[..., 4:]], -1), *(t[:, None] for t in tables(twice(f))), x),
    "other slices": lambda x, f: rotary(lambda y: torch.cat([-y[..., 3:7], y[..., :4]], -1), *(t[:, None] for t in tables(twice(f))), x),
    "not negated": lambda x, f: rotary(lambda y: torch.cat([y[..., 4:], y[..., :4]], -1), *(t[:, None] for t in tables(twice(f))), x),
    "another x": lambda x, f: twice(f)[:, None].cos() * (x + 1) + twice(f)[:, None].sin() * halves(x),
    "heads along the features": lambda x, f: rotary(
        lambda y: torch.cat([-y[:, 1:], y[:, :1]], 1), *(t[:, None] for t in tables(twice(f))), x
    ),
    "three dimensions": lambda x, f: rotary(halves, *tables(twice(f[0])), x[0]),
    "a difference": lambda x, f: x * twice(f)[:, None].cos() - halves(x) * twice(f)[:, None].sin(),
    "a factor": lambda x, f: torch.add(x * twice(f)[:, None].cos(), halves(x) * twice(f)[:, None].sin(), alpha=2),
}


def test_kept() -> None:
    assert_keeps(raise_rotary_embedding, lambda x, f: tuple(function(x, f) for function in KEPT.values()), (X, F))


def test_layers_share_their_tables() -> None:
    def compute(x: torch.Tensor, f: torch.Tensor) -> Any:
        cos, sin = (t[:, None] for t in tables(twice(f[:1])))
        query, key = rotary(halves, cos, sin, x), rotary(halves, cos, sin, x[:, :1] * 2)
        return rotary(halves, cos, sin, query + key), rotary(pairs, *(t[:, None] for t in tables(each(f))), x), key

    after = assert_rewrites(raise_rotary_embedding, compute, (X, F), made=(ROTARY,), gone=(aten.neg.default,), op_class=OpClass.EXACT)
    calls = after.graph.find_nodes(op="call_function", target=ROTARY)
    assert [len({call.args[place] for call in calls}) for place in (0, 1, 2)] == [3, 2, 2]


def test_what_is_read_elsewhere_stays() -> None:
    def compute(x: torch.Tensor, f: torch.Tensor) -> Any:
        cos, sin = (t[:, None] for t in tables(twice(f)))
        turned = halves(x) * sin
        return x * cos + turned, turned, cos

    after = assert_rewrites(raise_rotary_embedding, compute, (X, F), made=(ROTARY, aten.neg.default), op_class=OpClass.EXACT)
    assert len(after.graph.output_node().args[0]) == 3  # type: ignore[arg-type]


def test_dynamic_sizes_add_no_guards() -> None:
    forms = [RAISED[form][0] for form in ("one batch", "repeated", "heads behind", "some features")]

    def compute(x: torch.Tensor, f: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(form(x, f) for form in forms)

    moving = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC, 2: Dim.DYNAMIC}, {0: Dim.DYNAMIC, 1: Dim.DYNAMIC})
    program = capture(compute, (X, F), (moving,))
    guards = guard_state(program)
    after = AtenLowering(LoweringOptions(lowering_debug=True)).lower(program, Everything())
    assert guard_state(program) == guards
    assert targets(after).count(ROTARY) == len(forms)
    for batch, heads, length in ((2, 3, 6), (3, 2, 9)):
        x, f = torch.randn(batch, heads, length, 8), torch.randn(batch, length, 4)
        for mine, theirs in zip(run(after, x, f), compute(x, f), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_static_tables_are_folded_before() -> None:
    def compute(x: torch.Tensor) -> torch.Tensor:
        return rotary(pairs, *tables(each(torch.outer(torch.arange(6.0), torch.arange(4.0) / 7))), x)

    program = AtenLowering(LoweringOptions(lowering_debug=True)).lower(capture(compute, (X,)), Everything())
    assert ROTARY in targets(program)
    assert not {aten.cos.default, aten.neg.default, aten.mul.Tensor} & set(targets(program))
    torch.testing.assert_close(run(program, X)[0], compute(X), rtol=0, atol=0)


def test_later_views_stay_legal() -> None:
    """The operator lays its result out otherwise than a sum does."""

    def compute(x: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
        return RAISED["llama"][0](x, f).view(2, 18, 8) * 2

    assert_rewrites(raise_rotary_embedding, compute, (X, F), made=(ROTARY,), gone=(aten.neg.default,))


def test_what_no_converter_takes_is_not_raised() -> None:
    moves = (aten.cos.default, aten.sin.default, aten.expand.default)
    program = AtenLowering().lower(capture(RAISED["one batch"][0], (X, F)), Oracle(*moves))
    assert not {ROTARY, aten.squeeze.dim} & set(targets(program))
    torch.testing.assert_close(run(program, X, F)[0], RAISED["one batch"][0](X, F))
