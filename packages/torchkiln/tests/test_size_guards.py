"""Branches and checks on sizes: a program runs only where those of its example hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import torchkiln
from torchkiln.size_guards import Comparison, SizeGuard, guard_from_record, guard_to_record


class Even(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1 if x.shape[0] % 2 == 0 else x * 3 + 1


class Longer(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sum(0) * 2 if x.shape[0] > y.shape[0] else y.sum(0) * 3


class Checked(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._check(x.shape[0] % 3 == 1)
        return x * 2


ROWS = torch.ones(4, 2)
CASES: dict[str, tuple[nn.Module, tuple[torch.Tensor, ...], tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]] = {
    "a branch": (Even(), (torch.ones(4),), (torch.ones(6),), (torch.ones(5),)),
    "two sizes": (Longer(), (torch.ones(5, 2), ROWS[:3]), (torch.ones(8, 2), ROWS), (ROWS, ROWS.clone())),
    "a check": (Checked(), (torch.ones(4),), (torch.ones(7),), (torch.ones(6),)),
}


def compiled(case: str, **options: Any) -> torchkiln.CompiledModule:
    model, example, *_ = CASES[case]
    shapes = tuple({0: Dim.DYNAMIC} for _ in example)
    return torchkiln.compile(model, example, dynamic_shapes=shapes, engine="reference", min_block_size=1, **options)


@pytest.mark.parametrize("case", CASES)
def test_only_sizes_of_the_captured_branch_run(case: str, tmp_path: Path) -> None:
    model, example, good, bad = CASES[case]
    program = compiled(case)
    torchkiln.save(program, tmp_path / "program.kiln")
    for run in (program, torchkiln.load(tmp_path / "program.kiln")):
        for args in (example, good):
            assert torch.equal(run(*args), model(*args))
        for _ in range(2):  # what was refused once is refused again
            with pytest.raises(torchkiln.ShapeOutOfProfile, match="as the model asked for while it was captured"):
                run(*bad)


def test_a_size_that_a_dimension_is_computed_from_is_said_where_it_stands() -> None:
    class Pairs(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 + 1 if x.shape[0] // 2 != 3 else x * 3 + 1

    program = torchkiln.compile(
        Pairs(), (torch.ones(4),), dynamic_shapes=({0: 2 * Dim("half", min=1, max=9)},), engine="reference", min_block_size=1
    )
    [size] = program.report.sizes
    assert size.places == (f"x dimension 0 is 2*{size.symbol}",)
    assert torch.equal(program(torch.ones(10)), torch.full((10,), 3.0))
    with pytest.raises(torchkiln.ShapeOutOfProfile, match=rf"got {size.symbol} = 3 \(argument x dimension 0 is 2\*{size.symbol}\)"):
        program(torch.ones(6))


@pytest.mark.parametrize("way", ["torch", "rebuild"])
def test_other_branches_may_run_elsewhere(way: str) -> None:
    model, _, good, bad = CASES["a branch"]
    program = compiled("a branch", out_of_profile=way)
    for args in (good, bad, good):
        assert torch.equal(program(*args), model(*args))


def test_a_check_that_fails_raises_in_pytorch() -> None:
    with pytest.raises(RuntimeError):
        compiled("a check", out_of_profile="torch")(*CASES["a check"][3])


def test_an_exported_program_from_a_file_keeps_its_guards(tmp_path: Path) -> None:
    model, example, good, bad = CASES["a branch"]
    exported = torch.export.export(model, example, dynamic_shapes=({0: Dim.DYNAMIC},))
    torch.export.save(exported, tmp_path / "model.pt2")
    program = torchkiln.compile(torch.export.load(tmp_path / "model.pt2"), engine="reference", min_block_size=1)
    assert torch.equal(program(*good), model(*good))
    with pytest.raises(torchkiln.ShapeOutOfProfile):
        program(*bad)


def test_guards_of_several_comparisons_are_read_back() -> None:
    guard = SizeGuard((Comparison("==", 4, 2), Comparison(">", 3, 2)))
    assert guard.holds({})
    assert guard_from_record(guard_to_record(guard)) == guard
    with pytest.raises(torchkiln.PlanFormatError, match="unknown relation"):
        guard_from_record([["is", "1", "1"]])


@pytest.mark.parametrize("texts", [3, 4], ids=["equal in the example", "different in the example"])
def test_two_sizes_of_a_view_of_a_product_are_independent(texts: int) -> None:
    def scores(images: torch.Tensor, texts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        by_image = images @ texts.t()
        return by_image, by_image.t()

    shapes = ({0: Dim("images", min=1, max=8)}, {0: Dim("texts", min=1, max=8)})
    program = torchkiln.compile(scores, (torch.randn(3, 4), torch.randn(texts, 4)), dynamic_shapes=shapes, engine="reference")
    for rows, columns in ((3, 3), (3, 4), (5, 2), (1, 8), (1, 1)):
        args = torch.randn(rows, 4), torch.randn(columns, 4)
        for got, expected in zip(program(*args), scores(*args), strict=True):
            torch.testing.assert_close(got, expected)
            assert got.stride() == expected.stride()
