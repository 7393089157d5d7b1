"""U-Nets: one as diffusion models have, and the classic one for segmentation."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from example_models.example import Example, calibrate, randomize, ready
from example_models.vision import images


def time_embedding(step: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Sines and cosines of int64 time steps: ``[N] -> [N, width]``."""
    half = width // 2
    frequencies = torch.exp(torch.arange(half, device=step.device, dtype=torch.float32) * (-math.log(10000) / half))
    angles = step[:, None].float() * frequencies[None, :]
    return torch.cat([angles.cos(), angles.sin()], dim=-1).to(dtype)


class ResidualBlock(nn.Module):
    """Two convolutions with group norm and SiLU; the time shifts the channels between them."""

    def __init__(self, inner: int, outer: int, time_width: int) -> None:
        super().__init__()
        self.first_norm, self.first = nn.GroupNorm(8, inner), nn.Conv2d(inner, outer, 3, padding=1)
        self.time = nn.Linear(time_width, outer)
        self.second_norm, self.second = nn.GroupNorm(8, outer), nn.Conv2d(outer, outer, 3, padding=1)
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """``[N, inner, H, W], [N, T] -> [N, outer, H, W]``."""
        hidden = self.first(F.silu(self.first_norm(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.second(F.silu(self.second_norm(hidden)))


class ImageAttention(nn.Module):
    """Attention over all pixels, then from pixels to the words of a prompt."""

    def __init__(self, channels: int, words: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.word_norm = nn.GroupNorm(8, channels), nn.LayerNorm(channels)
        self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.query, self.kv, self.word_out = nn.Linear(channels, channels), nn.Linear(words, 2 * channels), nn.Linear(channels, channels)

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(self._split(q), self._split(k), self._split(v)).transpose(1, 2).flatten(2)

    def forward(self, x: torch.Tensor, prompt: torch.Tensor) -> torch.Tensor:
        """``[N, C, H, W], [N, L, words] -> [N, C, H, W]``."""
        pixels = self.norm(x).flatten(2).transpose(1, 2)
        pixels = pixels + self.out(self._attend(*self.qkv(pixels).chunk(3, dim=-1)))
        pixels = pixels + self.word_out(self._attend(self.query(self.word_norm(pixels)), *self.kv(prompt).chunk(2, dim=-1)))
        return x + pixels.transpose(1, 2).reshape(x.shape)


class DiffusionUNet(nn.Module):
    """The noise in an image at a time step, given a prompt: down by strided convolution, up by nearest neighbours and convolution."""

    def __init__(self, channels: int = 16, words: int = 24) -> None:
        super().__init__()
        wide, time = 2 * channels, 4 * channels
        self.channels = channels
        self.time = nn.Sequential(nn.Linear(channels, time), nn.SiLU(), nn.Linear(time, time))
        self.enter = nn.Conv2d(4, channels, 3, padding=1)
        self.down_block, self.down = ResidualBlock(channels, channels, time), nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.low_block, self.low_attention = ResidualBlock(channels, wide, time), ImageAttention(wide, words, 4)
        self.middle, self.middle_attention = ResidualBlock(wide, wide, time), ImageAttention(wide, words, 4)
        self.up_block, self.up = ResidualBlock(2 * wide, wide, time), nn.Conv2d(wide, wide, 3, padding=1)
        self.high_block = ResidualBlock(wide + channels, channels, time)
        self.norm, self.leave = nn.GroupNorm(8, channels), nn.Conv2d(channels, 4, 3, padding=1)

    def forward(self, image: torch.Tensor, step: torch.Tensor, prompt: torch.Tensor) -> torch.Tensor:
        """``[N, 4, H, W], int64 [N], [N, L, words] -> [N, 4, H, W]``."""
        time = self.time(time_embedding(step, self.channels, image.dtype))
        high = self.down_block(self.enter(image), time)
        low = self.low_attention(self.low_block(self.down(high), time), prompt)
        middle = self.middle_attention(self.middle(low, time), prompt)
        up = self.up_block(torch.cat([middle, low], dim=1), time)
        up = self.up(F.interpolate(up, scale_factor=2.0, mode="nearest"))
        return self.leave(F.silu(self.norm(self.high_block(torch.cat([up, high], dim=1), time))))


class TwoConvolutions(nn.Sequential):
    """Convolution, batch norm and ReLU, twice."""

    def __init__(self, inner: int, outer: int) -> None:
        parts: list[nn.Module] = []
        for width in (inner, outer):
            parts += [nn.Conv2d(width, outer, 3, padding=1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True)]
        super().__init__(*parts)


def transposed(inner: int, outer: int) -> nn.Module:
    """Twice the size by a transposed convolution."""
    return nn.ConvTranspose2d(inner, outer, 2, stride=2)


def bilinear(inner: int, outer: int) -> nn.Module:
    """Twice the size by interpolation, then a convolution."""
    return nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), nn.Conv2d(inner, outer, 1))


class ClassicUNet(nn.Module):
    """Segmentation: down by max pooling, up in one of two ways, with skip connections."""

    def __init__(self, up: Callable[[int, int], nn.Module], channels: int = 16, classes: int = 5) -> None:
        super().__init__()
        widths = (channels, 2 * channels, 4 * channels)
        self.down = nn.ModuleList(TwoConvolutions(inner, outer) for inner, outer in zip((3, *widths), widths, strict=False))
        self.up = nn.ModuleList(up(2 * width, width) for width in widths[-2::-1])
        self.join = nn.ModuleList(TwoConvolutions(2 * width, width) for width in widths[-2::-1])
        self.head = nn.Conv2d(channels, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[N, 3, H, W] -> [N, classes, H, W]``."""
        skips = []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        for up, join, skip in zip(self.up, self.join, skips[-2::-1], strict=True):
            x = join(torch.cat([skip, up(x)], dim=1))
        return self.head(x)


def diffusion_unet(dtype: torch.dtype, batch: int) -> Example:
    """The U-Net of a diffusion model."""
    args = (torch.randn(batch, 4, 16, 16, dtype=dtype), torch.randint(0, 1000, (batch,)), torch.randn(batch, 7, 24, dtype=dtype))
    return Example(ready(DiffusionUNet(), dtype), args, {})


def classic_unet(dtype: torch.dtype, batch: int) -> Example:
    """The classic U-Net with transposed convolutions."""
    return _classic(ClassicUNet(transposed), dtype, batch)


def bilinear_unet(dtype: torch.dtype, batch: int) -> Example:
    """The classic U-Net with bilinear interpolation."""
    return _classic(ClassicUNet(bilinear), dtype, batch)


def _classic(model: nn.Module, dtype: torch.dtype, batch: int) -> Example:
    randomize(model)
    calibrate(model, images(torch.float32, 8, 32))
    return Example(model.to(dtype), (images(dtype, batch, 32),), {})
