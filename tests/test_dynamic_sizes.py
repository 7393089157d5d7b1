"""Programs of every family of shape operations, compiled once for a range: right at its ends, between them, and refused outside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch.export import Dim

import torchkiln
from torchkiln_testing import OpClass, assert_same

T = torch.Tensor
F = torch.nn.functional
TYPICAL, LOW, HIGH = 6, 1, 13
SIZES = (LOW, TYPICAL, HIGH, 2, 5, 7, 11)
KERNEL = torch.arange(36.0).reshape(2, 2, 3, 3) / 36
TABLE = torch.arange(30.0).reshape(10, 3)


def index(x: T, limit: Any) -> T:
    return (x.abs() * 4).to(torch.int64) % limit


PROGRAMS: Mapping[str, Callable[[T, T], Any]] = {
    "reshape with several sizes and -1": lambda x, y: x.reshape(x.shape[0], x.shape[1], 2, -1).tanh().reshape(x.shape[0], -1, 2),
    "view merges and splits": lambda x, y: x.flatten().view(x.shape[0] * x.shape[1], -1).view(x.shape[0], x.shape[1], -1),
    "unflatten": lambda x, y: torch.unflatten(x.flatten(0, 1), 0, (x.shape[0], x.shape[1])).tanh(),
    "expand": lambda x, y: x[:1].expand(y.shape[0], -1, -1) + y[:, None],
    "repeat": lambda x, y: y.repeat(x.shape[0], 2),
    "tile and stack": lambda x, y: torch.stack([y.tile(2, 1), torch.cat([y, y])]),
    "slice by halves": lambda x, y: x[: x.shape[0] // 2 + 1, (x.shape[1] + 1) // 2 :],
    "slice by negative bounds and steps": lambda x, y: (x[-(x.shape[0] - 1) - 1 :: 2], y[: -(y.shape[0] // 2) - 1 or None], x[..., ::3]),
    "narrow": lambda x, y: x.narrow(1, x.shape[1] // 2, x.shape[1] - x.shape[1] // 2),
    "chunk and split": lambda x, y: (x.flatten().chunk(2)[0], torch.split(x, [1, x.shape[-1] - 1], -1)[1]),
    "cat along a size": lambda x, y: torch.cat([x.flatten(0, 1), y], 0),
    "pad": lambda x, y: F.pad(x, (1, 2, 0, 1)),
    "pad by a size": lambda x, y: F.pad(x, (0, 0, x.shape[0], 1)),
    "arange": lambda x, y: y * torch.arange(y.shape[0], device=y.device)[:, None],
    "full and zeros": lambda x, y: x.new_full((y.shape[0], x.shape[1]), 2.0) + torch.zeros_like(x[0, :, 0]),
    "index_select": lambda x, y: x.index_select(1, index(y[:, 0], x.shape[1])),
    "index": lambda x, y: x[index(y[:, 0], x.shape[0])],
    "gather": lambda x, y: y.gather(0, index(y, y.shape[0])),
    "scatter": lambda x, y: torch.zeros_like(y).scatter(1, index(y, 1), y),
    "topk": lambda x, y: y.flatten().topk(3).values,
    "topk by a size": lambda x, y: y.flatten().topk(y.shape[0] // 2 + 1).values,
    "sort": lambda x, y: y.sort(-1).values,
    "resize to a size": lambda x, y: F.interpolate(x[:, None, :, :2], size=(x.shape[1] + 1, 4)),
    "resize by a factor": lambda x, y: F.interpolate(x[None], scale_factor=2.0, mode="bilinear"),
    "resize by a fraction": lambda x, y: F.interpolate(x.transpose(1, 2), scale_factor=1.5).tanh() + 1,
    "resize by two fractions": lambda x, y: F.interpolate(x[:, None], size=(torch.sym_int(x.shape[1] * 0.7 * 10), 4)).tanh() + 1,
    "resize by a fraction, cubic": lambda x, y: F.interpolate(x[None], scale_factor=1.5, mode="bicubic") * 2,
    "pool, then merge": lambda x, y: F.avg_pool1d(x.transpose(1, 2), 2, 2, 1).sort(-1).values.flatten().flip(0),
    "conv": lambda x, y: F.conv2d(torch.stack([x, -x], 1), KERNEL.to(x.device), padding=1),
    "pool": lambda x, y: F.max_pool2d(F.pad(x, (0, 0, 1, 1)), 2, 1) + F.avg_pool2d(F.pad(x, (0, 0, 1, 1)), 2, 1),
    "attention": lambda x, y: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], is_causal=True),
    "attention by hand": lambda x, y: torch.softmax(x @ x.transpose(1, 2) / x.shape[-1] ** 0.5, -1) @ x,
    "embedding": lambda x, y: F.embedding(index(y, 10), TABLE.to(y.device)),
    "norms": lambda x, y: F.layer_norm(x, (x.shape[-1],)) + x.mean((0, 1)),
    "sizes as numbers": lambda x, y: x * (x.shape[0] // 2) + x.shape[1] % 3 + torch.sym_max(x.shape[0], 4) - torch.sym_min(x.shape[1], 3),
    "ceil of a quotient": lambda x, y: y[: (y.shape[0] + 2) // 3] / (x.shape[0] + 1),
    "relations": lambda x, y: x.flatten(0, 1)[: y.shape[0]] + y[: x.shape[0] * x.shape[1]],
    "cumulative": lambda x, y: y.cumsum(0) + y.flip(0),
    "reductions": lambda x, y: (x.amax((0, 1)), x.sum(1), y.argmax(0), x.var(-1), y.flatten().any()),
    "matmul": lambda x, y: torch.einsum("abc,dc->abd", x, y) @ y,
    "triangles": lambda x, y: x.tril() + torch.ones(x.shape[1], 4, device=x.device).triu(),
    "where and masks": lambda x, y: torch.where(torch.arange(x.shape[1], device=x.device)[:, None] < x.shape[0], x, -x).masked_fill(
        x > 2, 0
    ),
    "meshgrid": lambda x, y: torch.stack(torch.meshgrid(x[:, 0, 0], y[:, 0], indexing="ij")),
    "unfold": lambda x, y: x.unfold(-1, 2, 1).sum(-1),
    "roll": lambda x, y: y.roll(1, 0),
    # Sizes that depend on data: these calls stay in PyTorch, and what follows takes the size that comes.
    "nonzero": lambda x, y: y.nonzero() * 2,
    "mask": lambda x, y: y[y > 0] + 1,
    "rows by a mask": lambda x, y: torch.relu(y[y[:, 0] > 0] @ TABLE.T[:, :4].to(y.device).new_ones(4, 2)),
    "unique": lambda x, y: torch.unique(index(y, 7)) + 1,
    "repeat_interleave": lambda x, y: torch.repeat_interleave(y, index(y[:, 0], 3), 0) * 2,
    "item": lambda x, y: torch.relu(y * y.flatten()[0].item()),
    "an item as a size": lambda x, y: torch.arange(index(y, 5).amax().item(), device=y.device) * 2 + 1,
}
"""``x [n, m, 4]`` and ``y [k, 4]``, each size of its own."""
PARTLY = frozenset(
    {
        "topk by a size",
        "resize by a fraction",
        "resize by two fractions",
        "resize by a fraction, cubic",
        "pool, then merge",
        "nonzero",
        "mask",
        "rows by a mask",
        "unique",
        "repeat_interleave",
        "item",
        "an item as a size",
    }
)
"""Programs of which a call stays in PyTorch."""
MOVED = frozenset({"conv", "embedding"})
"""Programs with a constant on the host, whose move to a GPU stays in PyTorch there."""
OLDER = frozenset({"pad by a size"})
"""Programs that older releases of torch export with a call that stays in PyTorch."""
GUARDED = frozenset(
    {"unflatten", "slice by halves", "slice by negative bounds and steps", "narrow", "ceil of a quotient", "relations", "pool, then merge"}
)
"""Programs that torch exports for a part of the range only: it asks whether a quotient of sizes is 1, or which size is larger."""


class Net(torch.nn.Module):
    def __init__(self, program: Callable[[T, T], Any]) -> None:
        super().__init__()
        self.program = program

    def forward(self, x: T, y: T) -> Any:
        return self.program(x, y)


def arguments(n: int, m: int, k: int, device: str) -> tuple[T, T]:
    x = (torch.arange(n * m * 4) * 7 % 23 - 11).reshape(n, m, 4) / 4
    y = (torch.arange(k * 4) * 5 % 19 - 8).reshape(k, 4) / 4
    return x.to(device), y.to(device)


def compiled_for(name: str, engine: str, device: str) -> torchkiln.CompiledModule:
    ranges = [Dim.AUTO(min=LOW, max=HIGH)] * 3 if name in GUARDED else [Dim(dim, min=LOW, max=HIGH) for dim in "nmk"]
    example = arguments(TYPICAL, TYPICAL + 1, TYPICAL + 2, device)
    shapes = ({0: ranges[0], 1: ranges[1]}, {0: ranges[2]})
    return torchkiln.compile(Net(PROGRAMS[name]), example, dynamic_shapes=shapes, engine=engine, min_block_size=1)


def test_what_follows_a_bounded_size_of_data_is_in_an_engine() -> None:
    compiled = compiled_for("rows by a mask", "reference", "cpu")
    assert [segment.kind for segment in compiled.report.segments] == ["engine", "torch", "engine"]
    assert [(size.min, size.max) for size in compiled.report.sizes if size.symbol.startswith("u")] == [(0, HIGH)]


def check(name: str, engine: str, device: str) -> None:
    compiled = compiled_for(name, engine, device)
    ran = 0
    for place, size in enumerate(SIZES):
        for sizes in ((size, size, size), (size, SIZES[place - 1], SIZES[place - 3])):
            args = arguments(*sizes, device)
            if name in GUARDED and not compiled.accepts(args, {}):
                continue
            got = compiled(*args)
            with torch.no_grad():
                assert_same(PROGRAMS[name](*args), got, OpClass.MODEL)
            ran += 1
    assert ran >= 5
    if any(segment.kind == "engine" for segment in compiled.report.segments):
        for outside in ((HIGH + 1, 3, 3), (3, HIGH + 1, 3), (3, 3, HIGH + 1)):
            with pytest.raises(torchkiln.ShapeOutOfProfile, match=f"expected [12] to {HIGH}, got"):
                compiled(*arguments(*outside, device))
    if name not in OLDER or torch.__version__ >= torch.torch_version.TorchVersion("2.12"):
        partly = PARTLY | MOVED if device == "cuda" else PARTLY
        assert any(segment.kind == "torch" for segment in compiled.report.segments) == (name in partly), compiled.report


@pytest.mark.parametrize("name", PROGRAMS)
def test_on_the_reference_engine(name: str) -> None:
    check(name, "reference", "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_on_tensorrt(name: str) -> None:
    check(name, "tensorrt", "cuda")
