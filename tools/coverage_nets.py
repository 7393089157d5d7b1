"""A U-Net and a variational autoencoder as diffusion pipelines have them, small."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Group norm, SiLU, convolution, twice, beside a shortcut: ``[N, inner, H, W] -> [N, outer, H, W]``."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(8, inner), nn.GroupNorm(8, outer)])
        self.convolutions = nn.ModuleList([nn.Conv2d(inner, outer, 3, padding=1), nn.Conv2d(outer, outer, 3, padding=1)])
        self.shortcut = nn.Conv2d(inner, outer, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block."""
        hidden = x
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            hidden = convolution(F.silu(norm(hidden)))
        return self.shortcut(x) + hidden  # type: ignore[no-any-return]


class PixelAttention(nn.Module):
    """Attention over all pixels: ``[N, C, H, W] -> [N, C, H, W]``."""

    def __init__(self, channels: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.project, self.out = nn.GroupNorm(8, channels), nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention beside a shortcut."""
        rows = self.norm(x).flatten(2).transpose(1, 2)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.project(rows).chunk(3, dim=-1))
        attended = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        return x + self.out(attended).transpose(1, 2).reshape(x.shape)  # type: ignore[no-any-return]


class UNet(nn.Module):
    """Two scales with a skip between them: ``[N, 4, H, W] -> [N, 4, H, W]``."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.enter, self.high = nn.Conv2d(4, channels, 3, padding=1), Block(channels, channels)
        self.down = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.low, self.attention = Block(channels, 2 * channels), PixelAttention(2 * channels)
        self.up, self.merge = nn.Conv2d(2 * channels, channels, 3, padding=1), Block(2 * channels, channels)
        self.leave = nn.Conv2d(channels, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The noise in ``x``."""
        high = self.high(self.enter(x))
        low = self.attention(self.low(self.down(high)))
        up = self.up(F.interpolate(low, scale_factor=2.0, mode="nearest"))
        return self.leave(self.merge(torch.cat([up, high], dim=1)))  # type: ignore[no-any-return]


class Autoencoder(nn.Module):
    """Image to latent distribution and back from its mean: ``[N, 3, H, W] -> [N, 3, H, W], [N, 8, H / 4, W / 4]``."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, channels, 3, padding=1),
            Block(channels, channels),
            nn.ZeroPad2d((0, 1, 0, 1)),
            nn.Conv2d(channels, channels, 3, stride=2),
            nn.ZeroPad2d((0, 1, 0, 1)),
            nn.Conv2d(channels, 2 * channels, 3, stride=2),
            PixelAttention(2 * channels, heads=1),
            nn.Conv2d(2 * channels, 8, 3, padding=1),
        )
        self.decoder = nn.Sequential(
            nn.Conv2d(4, 2 * channels, 3, padding=1),
            PixelAttention(2 * channels, heads=1),
            nn.Upsample(scale_factor=2, mode="nearest"),
            Block(2 * channels, channels),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.Conv2d(channels, 3, 3, padding=1),
        )

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The image decoded from the mean, and mean and clamped log variance."""
        mean, spread = self.encoder(image).chunk(2, dim=1)
        return self.decoder(mean), torch.cat([mean, spread.clamp(-30, 20)], dim=1)
