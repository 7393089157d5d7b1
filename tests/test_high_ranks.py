"""Programs with tensors of more than eight dimensions, from end to end: merged into one engine, or in part left in PyTorch."""

from __future__ import annotations

import torch
from torch.export import Dim

import torchkiln
from torchkiln_testing import OpClass, assert_same

VIDEO = torch.randn(2, 4, 6, 4, 4, generator=torch.Generator().manual_seed(0))


class Windows(torch.nn.Module):
    """A linear layer over windows of a video, which are parted and put together again in nine dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = x.shape[0]
        y = x.view(count, 2, 2, 3, 2, 2, 2, 2, 2).permute(0, 1, 3, 5, 2, 4, 6, 7, 8).reshape(count, -1, 16)
        y = self.linear(y).relu()
        return y.view(count, 2, 3, 2, 2, 2, 2, 2, 2).permute(0, 1, 4, 2, 5, 3, 6, 7, 8).reshape(x.shape)


def test_merged_dimensions_are_one_engine() -> None:
    model = Windows().eval()
    sizes = ({0: Dim("count", min=1, max=5)},)
    compiled = torchkiln.compile(model, (VIDEO,), dynamic_shapes=sizes, engine="reference", require_full_compilation=True)
    assert [segment.kind for segment in compiled.report.segments] == ["engine"]
    for count in (1, 2, 5):
        x = torch.randn(count, *VIDEO.shape[1:])
        with torch.no_grad():
            assert_same(model(x), compiled(x), OpClass.MATMUL)


def test_what_cannot_be_merged_runs_in_pytorch() -> None:
    def scattered(x: torch.Tensor) -> torch.Tensor:
        y = (x * 2).view(2, 2, 2, 3, 2, 2, 2, 2, 2).permute(1, 3, 5, 7, 0, 2, 4, 6, 8)
        return y.reshape(2, -1).exp() + 1

    compiled = torchkiln.compile(scattered, (VIDEO,), engine="reference", min_block_size=1)
    assert [segment.kind for segment in compiled.report.segments] == ["engine", "torch", "engine"]
    assert {rejection.rule for rejection in compiled.report.rejections} >= {"rank"}
    assert_same(scattered(VIDEO), compiled(VIDEO), OpClass.POINTWISE)


def test_inputs_and_results_of_high_rank() -> None:
    def compute(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        return y, y.sum((1, 2)).exp().relu()

    x = torch.randn(1, 2, 2, 1, 2, 1, 2, 1, 3)
    compiled = torchkiln.compile(compute, (x,), engine="reference", min_block_size=1)
    assert "engine" in [segment.kind for segment in compiled.report.segments]
    assert_same(compute(x), compiled(x), OpClass.REDUCTION)
    jit = torch.compile(compute, backend="torchkiln", options={"engine": "reference", "min_block_size": 1})
    assert_same(compute(x), jit(x), OpClass.REDUCTION)
