"""Models of images."""

from __future__ import annotations

import torch

from example_models.example import Example, calibrate, enliven, randomize


class SmallConvNet(torch.nn.Module):
    """Convolutions, batch norm, pooling and a linear head: ``[N, 3, 32, 32] -> [N, 10]``."""

    def __init__(self) -> None:
        super().__init__()
        self.features = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3, padding=1, bias=False),
            torch.nn.BatchNorm2d(16),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(16, 32, 3, padding=1, groups=2),
            torch.nn.GELU(),
            torch.nn.AvgPool2d(2),
        )
        self.head = torch.nn.Linear(32 * 8 * 8, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Class probabilities."""
        return torch.softmax(self.head(self.features(image).flatten(1)), dim=-1)


def images(dtype: torch.dtype, batch: int, side: int) -> torch.Tensor:
    """``[batch, 3, side, side]``: blotches and noise, since all plain noise looks alike."""
    blotches = torch.nn.functional.interpolate(torch.randn(batch, 3, 4, 4), (side, side), mode="bilinear")
    return (2 * blotches + 0.5 * torch.randn(batch, 3, side, side)).to(dtype)


def small_conv_net(dtype: torch.dtype, batch: int) -> Example:
    """The small convolutional net."""
    return _example(SmallConvNet(), dtype, batch, 32)


def resnet18(dtype: torch.dtype, batch: int) -> Example:
    """torchvision's resnet18 at half its usual image size."""
    return _torchvision("resnet18", dtype, batch, 112)


def resnet50(dtype: torch.dtype, batch: int) -> Example:
    """torchvision's resnet50."""
    return _torchvision("resnet50", dtype, batch, 64)


def mobilenet_v3_small(dtype: torch.dtype, batch: int) -> Example:
    """torchvision's mobilenet_v3_small: depthwise convolutions, squeeze and excitation, hard activations."""
    return _torchvision("mobilenet_v3_small", dtype, batch, 64)


def efficientnet_b0(dtype: torch.dtype, batch: int) -> Example:
    """torchvision's efficientnet_b0: stochastic depth, which is off, and SiLU."""
    return _torchvision("efficientnet_b0", dtype, batch, 64)


def convnext_tiny(dtype: torch.dtype, batch: int) -> Example:
    """torchvision's convnext_tiny: layer norm of images in both layouts, layer scale."""
    return _torchvision("convnext_tiny", dtype, batch, 64)


def swin_t(dtype: torch.dtype, batch: int) -> Example:
    """torchvision's swin_t: shifted windows, masks, relative positions; 64 pixels are padded to whole windows."""
    return _torchvision("swin_t", dtype, batch, 64)


def vit_b_16(dtype: torch.dtype, batch: int) -> Example:
    """torchvision's vit_b_16 on small images: 37 tokens."""
    return _torchvision("vit_b_16", dtype, batch, 96, image_size=96)


def vit_tiny_patch16_224(dtype: torch.dtype, batch: int) -> Example:
    """timm's vit_tiny_patch16_224."""
    import timm

    return _example(timm.create_model("vit_tiny_patch16_224", pretrained=False), dtype, batch, 224)


def _torchvision(name: str, dtype: torch.dtype, batch: int, side: int, **settings: int) -> Example:
    import torchvision

    return _example(torchvision.models.get_model(name, weights=None, **settings), dtype, batch, side)


def _example(model: torch.nn.Module, dtype: torch.dtype, batch: int, side: int) -> Example:
    randomize(model)
    enliven(model)
    for name, parameter in model.named_parameters():
        if name.endswith("relative_position_bias_table"):
            torch.nn.init.normal_(parameter, std=1.0)
        elif name.endswith("bn3.weight"):
            parameter.data *= 0.25  # the end of a residual branch, which is weaker than what it is added to
    calibrate(model, images(torch.float32, 8, side))
    return Example(model.eval().to(dtype), (images(dtype, batch, side),), {})
