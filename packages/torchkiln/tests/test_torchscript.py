"""TorchScript that torch's own converter refuses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchkiln
from torchkiln_testing import OpClass, assert_same

X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


class Checked(nn.Module):
    """Raises in a branch, and chooses by a number."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, rate: int) -> torch.Tensor:
        if x.dim() != 2:
            raise ValueError("expected a matrix")
        if rate == 8000:
            out = self.linear(x)
        elif rate == 16000:
            out = self.linear(x).relu()
        else:
            raise ValueError("unknown rate")
        return out


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.state = torch.zeros(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 2:
            self.state = self.state + x.sum(0)
        return x + self.state


def test_branches_that_raise() -> None:
    script = torch.jit.script(Checked().eval())
    compiled = torchkiln.compile(script, (X, 16000), engine="reference", min_block_size=1)
    with torch.no_grad():
        assert_same(script(X, 16000), compiled(X, 16000), OpClass.MATMUL)
    assert compiled.report.segments[0].kind == "engine"


def test_a_script_with_state_says_which() -> None:
    script = torch.jit.script(Stateful().eval())
    with pytest.raises(torchkiln.ExportError, match="Stateful cannot be converted: it writes its attributes state; torch says"):
        torchkiln.compile(script, (X,), engine="reference")


def test_a_branch_on_data_gives_both_reasons() -> None:
    @torch.jit.script
    def choose(x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 0):
            y = x + 1
        else:
            raise ValueError("negative")
        return y

    with pytest.raises(torchkiln.ExportError, match=r"cannot be converted: .*; nor traced: "):
        torchkiln.compile(choose, (X.abs(),), engine="reference")
