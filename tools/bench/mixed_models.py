"""Ten models in which engines and PyTorch take turns: ``lgamma`` stays in PyTorch, between segments of many sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from torchkiln.demo.mixed import Attention, Mixed

Example = tuple[torch.nn.Module, tuple[torch.Tensor, ...]]


class Turns(torch.nn.Module):
    """``[*] -> [*]``: the steps one after another, with ``lgamma`` between them."""

    def __init__(self, *steps: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.steps = steps
        self.held = torch.nn.ModuleList(step for step in steps if isinstance(step, torch.nn.Module))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The last step's result."""
        for step in self.steps[:-1]:
            x = torch.lgamma(step(x).abs() + 1)
        return self.steps[-1](x)


class Fan(torch.nn.Module):
    """``[N, D] -> [N, D]``: one segment with as many results as parts, each of which PyTorch reads."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of the parts."""
        made = [torch.lgamma((x * (index + 1)).sigmoid()) for index in range(self.parts)]
        total = made[0]
        for part in made[1:]:
            total = total * part + 1
        return total


def _pointwise(count: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def step(x: torch.Tensor) -> torch.Tensor:
        for index in range(count):
            x = torch.sigmoid(x) if index % 2 else x * 1.5
        return x

    return step


def _linear(width: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.Linear(width, width), torch.nn.LayerNorm(width))


def _convolution(channels: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(channels, channels, 3, padding=1), torch.nn.BatchNorm2d(channels), torch.nn.ReLU(),
        torch.nn.Conv2d(channels, channels, 3, padding=1), torch.nn.BatchNorm2d(channels), torch.nn.ReLU(),
    )  # fmt: skip


def _small() -> torch.Tensor:
    return torch.rand(8, 256)


MIXED: Mapping[str, Callable[[], Example]] = {
    "2 small calls, four times": lambda: (Turns(*(_pointwise(1) for _ in range(4))), (_small(),)),
    "4 small calls, four times": lambda: (Turns(*(_pointwise(3) for _ in range(4))), (_small(),)),
    "12 small calls, three times": lambda: (Turns(*(_pointwise(12) for _ in range(3))), (_small(),)),
    "4 large pointwise calls, three times": lambda: (Turns(*(_pointwise(4) for _ in range(3))), (torch.rand(4096, 4096),)),
    "12 results": lambda: (Fan(12), (_small(),)),
    "two layers of 256, three times": lambda: (Turns(*(_linear(256) for _ in range(3))), (_small(),)),
    "two layers of 2048, three times": lambda: (Turns(*(_linear(2048) for _ in range(3))), (torch.rand(256, 2048),)),
    "convolutions, three times": lambda: (Turns(*(_convolution(64) for _ in range(3))), (torch.rand(32, 64, 56, 56),)),
    "transformer blocks, twice": lambda: (Turns(Attention(512, 8), Attention(512, 8)), (torch.rand(8, 128, 512),)),
    "torchkiln's mixed demo": lambda: (Mixed(), (torch.rand(16, 3, 128, 128),)),
}
"""A model and its arguments by name, on the CPU, in float32."""
