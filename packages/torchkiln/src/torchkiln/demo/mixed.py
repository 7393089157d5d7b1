"""A model of which a part stays in PyTorch: an image encoder, a scale that has no converter, and a recurrent summary of its rows."""

from __future__ import annotations

import torch


class Encoder(torch.nn.Module):
    """``[N, 3, H, W] -> [N, 32, H / 4, W / 4]``."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3, stride=2, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU())
        self.down = torch.nn.Sequential(torch.nn.Conv2d(16, 32, 3, stride=2, padding=1), torch.nn.BatchNorm2d(32), torch.nn.SiLU())
        self.mix = torch.nn.Conv2d(32, 32, 3, padding=1, groups=4)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Features with a shortcut around the last convolution."""
        features = self.down(self.stem(image))
        return features + torch.nn.functional.gelu(self.mix(features))  # type: ignore[no-any-return]


class Attention(torch.nn.Module):
    """``[N, L, D] -> [N, L, D]``, one pre-norm transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = torch.nn.LayerNorm(width)
        self.project = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.feed = torch.nn.Sequential(
            torch.nn.LayerNorm(width), torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Attention over the rows, then a feed-forward net."""
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.project(self.norm(rows)).chunk(3, -1))
        rows = rows + self.out(torch.nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))
        return rows + self.feed(rows)  # type: ignore[no-any-return]


class Evidence(torch.nn.Module):
    """``[N, L, D] -> [N, L, D]``: a scale from the log-gamma function, which TensorRT has no layer for."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows divided by their evidence."""
        amount = torch.nn.functional.softplus(rows) + 1
        return rows / (1 + torch.lgamma(amount).abs()) + torch.digamma(amount)


class Mixed(torch.nn.Module):
    """``[N, 3, 32, 32] -> [N, 10]``: engines with a few calls in PyTorch between them."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.blocks = torch.nn.ModuleList([Attention(32, 4), Attention(32, 4)])
        self.evidence = Evidence()
        self.head = torch.nn.Linear(32, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Class scores."""
        rows = self.encoder(image).flatten(2).transpose(1, 2)
        rows = self.blocks[1](self.evidence(self.blocks[0](rows)))
        return self.head(rows.mean(1)).log_softmax(-1)  # type: ignore[no-any-return]


def mixed() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """The model with random weights, and example arguments."""
    return Mixed().eval(), (torch.randn(2, 3, 32, 32),)
